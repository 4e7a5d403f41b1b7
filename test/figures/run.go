package figures

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
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

// EmptyFilter builds the filter that does nothing, and returns where it is.
func EmptyFilter(ctx context.Context, root string) (file string, err error) {
	file = filepath.Join(root, "build/empty.wasm")
	source := filepath.Join(root, "test/figures/bench/empty")
	build := exec.CommandContext(ctx, filepath.Join(root, "wasm-build.sh"), "-o", file, source)
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the empty filter does not build: %w\n%s", err, output)
	}
	return file, nil
}

// Encode returns a run as a file keeps it and -o json prints it.
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
