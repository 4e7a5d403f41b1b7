// Wasmgate looks at a filter module before it is shipped.
//
//	wasmgate strip -o OUT IN   writes IN without the exports a filter does not need
//	wasmgate check IN          fails, with all reasons, if Envoy cannot run IN or IN leaks
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

const usage = `usage: wasmgate strip -o OUT IN   writes IN without the exports a filter does not need
       wasmgate check IN          fails, with all reasons, if Envoy cannot run IN or IN leaks`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "wasmgate:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	if args[0] == "-h" || args[0] == "--help" {
		_, err := fmt.Fprintln(out, usage)
		return err
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	output := flags.String("o", "", "where to write the stripped module")
	if err := flags.Parse(args[1:]); err != nil || flags.NArg() != 1 {
		return errors.New(usage)
	}
	path := flags.Arg(0)
	switch {
	case args[0] == "strip" && *output != "":
		return stripFile(path, *output)
	case args[0] == "check" && *output == "":
		return checkFile(path, out)
	}
	return errors.New(usage)
}

func stripFile(path, output string) error {
	m, err := loadModule(path)
	if err != nil {
		return err
	}
	if err := refuseModule(path, m.checkExports()); err != nil {
		return err
	}
	return os.WriteFile(output, m.stripExports(), 0o644)
}

func checkFile(path string, out io.Writer) error {
	m, err := loadModule(path)
	if err != nil {
		return err
	}
	if err := refuseModule(path, m.checkModule()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: %d bytes (%d%% of the budget), %d exports, %d imports\n  exports: %s\n"+
		"  imports: %s\n",
		path, m.size, m.size*100/maxSize, len(m.exports), len(m.imports), joinNames(m.exports), joinNames(m.imports))
	return err
}

func loadModule(path string) (*module, error) {
	file, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := decodeModule(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

func refuseModule(path string, problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%s is refused:\n  - it %s", path, strings.Join(problems, "\n  - it "))
}

func joinNames(list []entity) string {
	out := make([]string, len(list))
	for i, e := range list {
		out[i] = e.name
	}
	return strings.Join(out, " ")
}
