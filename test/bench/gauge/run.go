package gauge

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
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
