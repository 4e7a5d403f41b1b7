package gauge

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// Main runs a program that measures until it ends or is interrupted, and exits with 1 and its name
// before the error if it fails.
func Main(name string, run func(ctx context.Context, args []string, out, progress io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop)
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// Usage is what is wrong with the rest of a command line and with the kind of output; nil if
// nothing is.
func Usage(f *flag.FlagSet, output string) error {
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	case output != "table" && output != "json":
		return fmt.Errorf("-o %s: there are table and json", output)
	}
	return nil
}

// Command is how make is asked for a run: its target, and the variable that has the arguments.
func Command(target, variable string, args []string) string {
	command := "make " + target
	if len(args) > 0 {
		command += " " + variable + "='" + strings.Join(args, " ") + "'"
	}
	return command
}

// EmptyFilter builds the filter that does nothing, and returns where it is.
func EmptyFilter(ctx context.Context, root string) (file string, err error) {
	file = filepath.Join(root, "build/empty.wasm")
	source := filepath.Join(root, "test/bench/empty")
	build := exec.CommandContext(ctx, filepath.Join(root, "wasm-build.sh"), "-o", file, source)
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the empty filter does not build: %w\n%s", err, output)
	}
	return file, nil
}

// Run is a finished run.
type Run interface {
	// WritePage writes it into the pages of a folder, Print as tables.
	WritePage(docs string) error
	Print(out io.Writer) error
}

// Show writes a run into the pages of docs, unless that is empty, and prints it, as a table or as
// JSON.
func Show(r Run, docs, output string, out io.Writer) error {
	if docs != "" {
		if err := r.WritePage(docs); err != nil {
			return err
		}
	}
	if output == "table" {
		return r.Print(out)
	}
	data, err := Encode(r)
	if err == nil {
		_, err = out.Write(data)
	}
	return err
}

// Encode is a run as a file keeps it and -o json prints it.
func Encode(run any) ([]byte, error) {
	data, err := json.MarshalIndent(run, "", " ")
	return append(data, '\n'), err
}

// Decode reads a file that Encode has made into run.
func Decode(name string, run any) error {
	content, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, run); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
