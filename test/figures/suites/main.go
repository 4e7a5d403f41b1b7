// Command suites is `make test-everything`: it runs each target of the Makefile that tests
// something, one after the other, and notes when, at which commit, where and how long each ran. A
// target that fails does not stop the run. Run it in the repository's root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"time"

	"github.com/weir-proxy/weir/test/figures"
)

// logs is the folder of the targets' output.
const logs = "build/suites"

func main() { figures.Main("suites", run) }

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	f := flag.NewFlagSet("suites", flag.ContinueOnError)
	only := f.String("only", ".*", "run only the targets whose whole names match this regular expression")
	version := f.String("version", "dev", "the version of the tree")
	docs := f.String("docs", "docs", "write "+pageName+" in this folder")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	wanted, err := regexp.Compile("^(?:" + *only + ")$")
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	// The last runs of the other targets stay on the page.
	var r report
	if err := figures.Decode(filepath.Join(*docs, fileName), &r); err != nil {
		return err
	}
	done, failed := runTargets(ctx, *version, wanted, progress)
	r = r.replaceOutcomes(done)
	page, err := r.page()
	if err == nil && len(done) > 0 {
		err = page.Write(*docs)
	}
	return errors.Join(err, r.table().Print(out), failed)
}

// runTargets runs the wanted targets. Its error names the failed targets.
func runTargets(
	ctx context.Context, version string, wanted *regexp.Regexp, progress io.Writer,
) (done []outcome, failed error) {
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, err
	}
	for _, s := range suites {
		if !wanted.MatchString(s.target) || ctx.Err() != nil {
			continue
		}
		o := outcome{Target: s.target, Facts: figures.NoteFacts(version, s.target, "", nil)}
		fmt.Fprintf(progress, "make %s: %s\n", s.target, s.tests)
		begin := time.Now()
		err := runTarget(ctx, s.target)
		if ctx.Err() != nil {
			break // An interrupted target has no result.
		}
		o.Took, o.Passed = time.Since(begin).Round(time.Second), err == nil
		fmt.Fprintf(progress, "make %s: %s in %v\n", s.target, o.result(), o.Took)
		done = append(done, o)
		failed = errors.Join(failed, err)
	}
	if len(done) == 0 && ctx.Err() == nil {
		return nil, errors.New("no target has a name that matches -only")
	}
	return done, errors.Join(failed, ctx.Err())
}

// runTarget runs a target of the Makefile. Its output goes to a file, which the error names.
func runTarget(ctx context.Context, target string) error {
	name := filepath.Join(logs, target+".log")
	log, err := os.Create(name)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "make", target)
	cmd.Stdout, cmd.Stderr = log, log
	err = errors.Join(cmd.Run(), log.Close())
	if err != nil {
		return fmt.Errorf("make %s fails: %w; see %s", target, err, name)
	}
	return nil
}
