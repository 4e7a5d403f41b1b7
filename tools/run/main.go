// Command run is `make run`: Envoy with the filter, the control plane and a small upstream on this
// machine, until Ctrl-C. It runs in the repository's root, on what `make build` made.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// The first signal ends everything in order. A second one means that the user does not want to
	// wait: it ends this process as signals do, and the kernel ends the others with it.
	context.AfterFunc(ctx, stop)

	s, err := readSettings(os.Getenv)
	if err == nil {
		err = run(ctx, s, os.Stdout)
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "make run:", err)
		os.Exit(1)
	}
}
