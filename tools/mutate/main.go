// Command mutate tests the tests of the packages that decide: it changes their code at one place at
// a time, for example a < to a <=, and runs tests that ought to notice. If no test notices a
// change, either the tests have a gap or the change has no visible effect. The file equivalent.txt
// names the changes without a visible effect, with the reason. The command fails if a change that
// the file does not name survives, or if tests notice a change that it names.
//
//	go run ./tools/mutate ./shared/quota ./shared/lease
//
// changes the code of the first package and runs the tests of all of them, in that order. The files
// themselves are not touched. With -only REGEXP it makes only the changes whose names match.
package main

import (
	"bufio"
	_ "embed" // for the list of changes without effect
	"errors"
	"flag"
	"fmt"
	"go/build"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

//go:embed equivalent.txt
var equivalents string

func main() {
	only := flag.String("only", "", "make only the changes whose names match this regular expression")
	flag.Parse()
	if err := runMutants(*only, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func runMutants(only string, packages []string) error {
	if len(packages) == 0 {
		return errors.New("usage: mutate [-only REGEXP] PACKAGE [PACKAGE WITH MORE TESTS] (any number)")
	}
	// Choose the changes.
	wanted, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	mutants, err := mutantsOf(packages[0])
	if err != nil {
		return err
	}
	mutants = slices.DeleteFunc(mutants, func(m mutant) bool { return !wanted.MatchString(m.String()) })
	if len(mutants) == 0 {
		return fmt.Errorf("no change in %s has a name that matches %s", packages[0], only)
	}
	// Without a change the tests must pass.
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// The machine may be busy, so the limit follows from the time that the tests take without a
	// change.
	start := time.Now()
	if fate, output := tryMutant(dir, -1, mutant{}, packages, 10*time.Minute); fate != survived {
		return fmt.Errorf("the tests fail without any change:\n%s", output)
	}
	limit := 30*time.Second + 3*time.Since(start)
	// Try the changes, one for each processor at a time.
	fates := make([]fate, len(mutants))
	var tried atomic.Int64
	var wait errgroup.Group
	wait.SetLimit(runtime.GOMAXPROCS(0))
	for i, m := range mutants {
		wait.Go(func() error {
			fates[i], _ = tryMutant(dir, i, m, packages, limit)
			fmt.Printf("%3d of %d  %-9s %s\n", tried.Add(1), len(mutants), fates[i], m)
			return nil
		})
	}
	if err := wait.Wait(); err != nil {
		return err
	}
	return reportFates(mutants, fates)
}

// mutantsOf returns every change to the code of a package.
func mutantsOf(path string) ([]mutant, error) {
	p, err := build.ImportDir(path, 0)
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, name := range p.GoFiles {
		file := filepath.Join(path, name)
		source, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		mutants, err := mutateFile(file, source)
		if err != nil {
			return nil, err
		}
		all = append(all, mutants...)
	}
	return all, nil
}

// reportFates sums up, and fails if a fate differs from equivalent.txt.
func reportFates(mutants []mutant, fates []fate) error {
	known := readEquivalents(equivalents)
	killed, alive, equal := 0, 0, 0
	var errs []error
	for i, m := range mutants {
		name := m.String()
		switch {
		case fates[i] == noticed && known[name]:
			errs = append(errs, fmt.Errorf("equivalent.txt says that it changes nothing, but a test notices: %s", name))
		case fates[i] == noticed:
			killed++
		case fates[i] == survived && known[name]:
			equal++
		case fates[i] == survived:
			alive++
			errs = append(errs, fmt.Errorf("no test notices: %s", name))
		}
	}
	if killed+alive > 0 {
		fmt.Printf("%d of %d changes were noticed (%.1f %%); %d more change nothing\n",
			killed, killed+alive, 100*float64(killed)/float64(killed+alive), equal)
	}
	return errors.Join(errs...)
}

// readEquivalents reads the list: a line for each change, with the reason behind " # ".
func readEquivalents(text string) map[string]bool {
	known := map[string]bool{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		if name, _, ok := strings.Cut(lines.Text(), " # "); ok {
			known[name] = true
		}
	}
	return known
}
