// Command overload is `make overload`: it measures a service that receives three times the requests
// that it can answer, while its capacity steps to two fifths and back. Envoy is in front of it with
// no limit, with adaptive_concurrency, and with Weir's adaptive limit. Envoy is a real process;
// this process has the service and the callers. Run it in the repository's root after `make build`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/weir-proxy/weir/test/figures"
)

func main() { figures.Main("overload", run) }

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	f := flag.NewFlagSet("overload", flag.ContinueOnError)
	phase := f.Duration("phase", 15*time.Second, "how long each of the three phases lasts")
	docs := f.String("docs", "", "write the plot, and the table into choose/adaptive.md, in this folder")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
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
		fmt.Fprintf(progress, "%s, for %s\n", c.name, 3**phase)
		one, err := c.measure(ctx, root, *phase)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		courses = append(courses, one)
	}
	if *docs != "" {
		err = page(courses).Write(*docs)
	}
	return errors.Join(err, table(courses).Print(out))
}
