"""The configurations of nginx and HAProxy, with names between @ where values go."""

NGINX = """\
# nginx as the public address of a SuperLink, written by: fedfw deploy proxy --config nginx
# Check it:  nginx -t -c THIS_FILE       Run it:  nginx -c THIS_FILE -g 'daemon off;'
@load_module@
worker_processes auto;
worker_rlimit_nofile 32768;
pid @work@/nginx.pid;
error_log stderr warn;
events {
  worker_connections 8192;
}

# The first half takes connections and limits them by address. limit_conn of the second half would
# count a connection only after its whole head: silent connections, in TLS or not, would not be
# limited.
stream {
  map $remote_addr $client {  # an IPv6 address counts by its /64; its text has zeros left out
    default $binary_remote_addr;
    "~^(?<prefix>(?:[0-9a-f]+:){1,4})" $prefix;
  }
  limit_conn_zone $client zone=connections:16m;
  server {
    listen @listen@ backlog=4096;
    limit_conn connections @connections@;
    proxy_pass unix:@socket@;
    proxy_protocol on;
    proxy_timeout 120s;  # longer than every time limit of the second half
  }
}

# The second half has TLS and HTTP, and has the address from the first.
http {
  access_log off;
  server_tokens off;
  client_body_temp_path @work@/body;
  proxy_temp_path @work@/proxy;
  fastcgi_temp_path @work@/fastcgi;
  uwsgi_temp_path @work@/uwsgi;
  scgi_temp_path @work@/scgi;

  map $remote_addr $client {
    default $binary_remote_addr;
    "~^(?<prefix>(?:[0-9a-f]+:){1,4})" $prefix;
  }
  # The request line as it was sent, not as nginx normalises it: every call has one spelling.
  map $request $call {
    default "";
    "~^POST /v1/fleet/(@operations@) HTTP/1\\.1$" yes;
  }
  map $content_length $large_from {  # an empty value is not counted
    default "";
    "~^[0-9]{@large_digits@,}$" $client;
  }
  limit_conn_zone $large_from zone=bodies:16m;
  limit_req_zone $client zone=calls:16m rate=@rate@r/s;

  upstream superlink {
    zone superlink 64k;
    server @superlink@ max_conns=64;
    keepalive 32;
    keepalive_timeout 3s;  # the SuperLink closes idle connections after five
  }

  server {
    listen unix:@socket@ ssl proxy_protocol backlog=4096;
    set_real_ip_from unix:;
    real_ip_header proxy_protocol;

    ssl_certificate @certificate@;
    ssl_certificate_key @key@;
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_session_cache shared:tls:16m;
    ssl_session_tickets off;

    client_header_timeout 30s;  # the handshake included
    client_body_timeout 30s;  # between two reads
    send_timeout 30s;
    keepalive_timeout 65s;
    reset_timedout_connection on;
    client_header_buffer_size 4k;
    large_client_header_buffers 2 8k;
    client_max_body_size @largest_mb@m;
    # What these two refuse is answered 503, upon which a SuperNode tries again.
    limit_req zone=calls burst=@burst@ nodelay;
    limit_conn bodies @bodies@;

    if ($call = "") { return 404; }
    if ($http_transfer_encoding) { return 400; }
    if ($content_length = "") { return 411; }

    # A body is received whole, on disk where it is large, before the SuperLink hears of it.
    proxy_request_buffering on;
    proxy_pass_request_headers off;
    proxy_set_header Host @superlink_name@;
    proxy_set_header Connection "";
@set_headers@
    proxy_http_version 1.1;
    proxy_connect_timeout 5s;
    proxy_read_timeout 60s;
    proxy_next_upstream off;
    proxy_ssl_verify on;
    proxy_ssl_trusted_certificate @ca@;
    proxy_ssl_name @superlink_name@;
    proxy_ssl_server_name on;
    location / {
      proxy_pass https://superlink;
    }
  }
}
"""

HAPROXY = """\
# HAProxy as the public address of a SuperLink, written by: fedfw deploy proxy --config haproxy
# HAProxy looks for the private key beside the certificate:  ln -s @key@ @certificate@.key
# Check it:  haproxy -c -f THIS_FILE     Run it:  haproxy -db -f THIS_FILE
global
  maxconn 8000
  log stderr format raw local0 notice

defaults
  mode http
  log global
  option dontlognull
  timeout connect 5s
  timeout client 30s
  timeout server 60s  # pauses within a body that the SuperLink is already sent, too
  timeout queue 25s  # a SuperNode waits 30 s for an answer
  timeout http-request 30s
  timeout http-keep-alive 65s
  retries 0  # a SuperNode tries again by itself

frontend nodes
  bind @listen@ ssl crt @certificate@ ssl-min-ver TLSv1.2 alpn http/1.1
  option disable-h2-upgrade
  # Connections are counted when they are accepted, before TLS; an IPv6 address counts by its /64.
  stick-table type ipv6 size 1m expire 2m store conn_cur,http_req_rate(10s)
  tcp-request connection track-sc0 src,ipmask(32,64)
  tcp-request connection reject if { sc0_conn_cur gt @connections@ }

  # The address as it was sent, not as HAProxy normalises it: every call has one spelling.
  acl call url -m str @urls@
  http-request deny status 404 unless METH_POST call HTTP_1.1
  http-request deny status 400 if { req.hdr(transfer-encoding) -m found } || \
{ req.hdr(upgrade) -m found }
  http-request deny status 411 unless { req.hdr_cnt(content-length) eq 1 }
  # Status 503 makes a SuperNode try again.
  http-request deny status 503 if { sc0_http_req_rate gt @burst@ }
  http-request deny status 413 if { req.hdr_val(content-length) gt @largest_bytes@ }
  acl large req.hdr_val(content-length) ge @large_bytes@
  http-request track-sc1 src,ipmask(32,64) table bodies if large
  http-request deny status 503 if large { sc1_conn_cur(bodies) gt @bodies@ }
  http-request del-header '^(?!(@kept_headers@)$)' -m reg
  http-request set-header host @superlink_name@
  http-response del-header server
  use_backend superlink-large if large
  default_backend superlink

backend bodies
  stick-table type ipv6 size 1m expire 10m store conn_cur

# The SuperLink answers calls one after another. What is more than it can have in hand waits here,
# so that the server's own app, which asks it directly, does not wait behind a whole fleet.
backend superlink
  option http-buffer-request  # a body is received whole before the SuperLink hears of it
  http-reuse safe
  default-server ssl verify required ca-file @ca@ verifyhost @superlink_name@ \
sni str(@superlink_name@)
  server superlink @superlink@ maxconn 64

# Large bodies are forwarded as they come; slow ones hold up one another at most.
backend superlink-large
  http-reuse safe
  default-server ssl verify required ca-file @ca@ verifyhost @superlink_name@ \
sni str(@superlink_name@)
  server superlink @superlink@ maxconn 64
"""
