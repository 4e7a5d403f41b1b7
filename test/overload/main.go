// Command overload is `make overload`: what becomes of a service that is asked for three times what
// it can give, while its capacity steps to two fifths and back, behind Envoy with no limit, with
// Envoy's adaptive_concurrency, and with Weir's adaptive limit. Envoy is a real process, the
// service and the callers are in this one. It runs in the repository's root, on what `make build`
// made.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "overload:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("overload", flag.ContinueOnError)
	phase := f.Duration("phase", 15*time.Second, "how long each of the three phases lasts")
	docs := f.String("docs", "", "write the plot, and the table into overload.md, in this folder")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 || *phase < time.Second {
		return errors.New("-phase must be a second at least, and there are no arguments")
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	var courses []*course
	for _, c := range contestants {
		fmt.Fprintf(os.Stderr, "%s, for %s\n", c.name, 3**phase)
		one, err := c.measure(ctx, root, *phase)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		courses = append(courses, one)
	}
	text := table(courses)
	fmt.Print(text)
	if *docs == "" {
		return nil
	}
	return write(*docs, text, plot(courses))
}
