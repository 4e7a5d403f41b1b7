package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/weir-proxy/weir/controlplane/internal/app"
	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
)

type serveCommand struct {
	settings.Flags
}

// Help returns the text below the flags.
func (serveCommand) Help() string {
	return `The administrator's and the nodes' tokens may also be given as WEIR_ADMIN_TOKEN and WEIR_NODE_TOKEN.

/healthz, /readyz, /readyz/store, /version and /metrics are open to whoever reaches the address; everything else needs a token.`
}

// Run serves until SIGINT or SIGTERM. A second signal ends the wait for callers.
func (c *serveCommand) Run(env *environment) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(env.Err, &slog.HandlerOptions{Level: level}))
	if c.LogFormat == "text" {
		log = slog.New(slog.NewTextHandler(env.Err, &slog.HandlerOptions{Level: level}))
	}
	c.AdminToken, c.NodeToken = os.Getenv("WEIR_ADMIN_TOKEN"), os.Getenv("WEIR_NODE_TOKEN")
	s, err := c.Resolve()
	if err != nil {
		fmt.Fprintf(env.Err, "weir serve: the settings are refused:\n  %s\n",
			strings.ReplaceAll(err.Error(), "\n", "\n  "))
		return errReported
	}
	ctx, atOnce, stop := signalContexts()
	defer stop()
	a, err := app.New(s, env.build.Version, log)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%w: choose another address for the listener that has it", err)
		}
		return err
	}
	for _, made := range s.Made { // Now the data directory is this process's.
		if err := made.Keep(); err != nil {
			return err
		}
		log.Info("no token was given, so one was made", "file", made.Path)
	}
	return a.Run(ctx, atOnce)
}

// signalContexts returns contexts that end with the first and with the second signal to end. A
// third one ends the process.
func signalContexts() (first, second context.Context, stop context.CancelFunc) {
	received := make(chan os.Signal, 2)
	signal.Notify(received, syscall.SIGINT, syscall.SIGTERM)
	first, endFirst := context.WithCancel(context.Background())
	second, endSecond := context.WithCancel(context.Background())
	go func() {
		for _, end := range []context.CancelFunc{endFirst, endSecond} {
			select {
			case <-received:
				end()
			case <-second.Done():
			}
		}
		signal.Stop(received)
	}()
	return first, second, func() { endFirst(); endSecond() }
}
