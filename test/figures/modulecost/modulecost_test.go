package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/test/figures"
)

// An Envoy starts with each module, and its figures are read. No time is judged.
func TestEachModuleStarts(t *testing.T) {
	t.Chdir("../../..")
	var out bytes.Buffer
	args := []string{
		"-starts", "1", "-settle", "0s", "-few", "1", "-many", "2", "-o", "json", "-beside", "build/weir.wasm",
	}
	if err := run(t.Context(), args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Contestants) != 5 || len(r.Rounds) != 1 {
		t.Fatalf("%s", out.String())
	}
	for i, c := range r.Contestants {
		few, many := r.Rounds[0].Few[i], r.Rounds[0].Many[i]
		isFilter, inWasm := c.Wasm != "", c.Wasm != "" && !strings.Contains(c.Title, "native")
		if few.Ready <= 0 || few.CPU <= 0 || few.MB <= 0 || (few.VMs > 0) != inWasm || (c.Bytes > 0) != isFilter {
			t.Errorf("%s: %+v of %d bytes", c.Title, few, c.Bytes)
		}
		if inWasm && many.VMs <= few.VMs {
			t.Errorf("%s: %v virtual machines with one worker, %v with two", c.Title, few.VMs, many.VMs)
		}
	}
}

// course returns a run in which an Envoy without a filter takes 100 ms and 50 MB, and 10 ms and 1
// MB for each worker; a virtual machine takes 20 ms and 5 MB.
func course() *report {
	of := func(workers float64, filter bool) reading {
		f := reading{Ready: 300, CPU: 100 + 10*workers, MB: 50 + workers}
		if filter {
			f.VMs = workers + 2
			f.CPU += 20 * f.VMs
			f.MB += 5 * f.VMs
		}
		return f
	}
	return &report{
		Facts: figures.Facts{Command: "make module-cost"}, Plan: plan{Starts: 1, Few: 2, Many: 6},
		Contestants: []contestant{{Title: "no filter"}, {Title: "Weir", Wasm: "weir.wasm", Bytes: 600000}},
		Rounds: []round{
			{Few: []reading{of(2, false), of(2, true)}, Many: []reading{of(6, false), of(6, true)}, Foreign: 0.5},
		},
	}
}

// The cost of a virtual machine leaves out the cost of a worker in an Envoy without a filter.
func TestTable(t *testing.T) {
	want := strings.Join([]string{"Weir", "600000", "4", "300", "200", "72.0", "20", "5.0"}, " ")
	if got := strings.Join(course().table()[2], " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var out bytes.Buffer
	if err := course().Report().Print(&out); err != nil || !strings.Contains(out.String(), "0.50 processors") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// The figures have a place on the page.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/" + pageName)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, filepath.Dir(pageName)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, pageName), page, 0o644); err != nil {
		t.Fatal(err)
	}
	written, err := course().Page()
	if err != nil {
		t.Fatal(err)
	}
	if err := written.Write(dir); err != nil {
		t.Error(err)
	}
}

func TestSettings(t *testing.T) {
	s, err := parse([]string{"-starts", "3", "-few", "1", "-many", "4", "-o", "json", "-beside", "x"}, io.Discard)
	if err != nil || s.Starts != 3 || s.Few != 1 || s.Many != 4 || s.Kind != "json" || s.beside != "x" {
		t.Errorf("%+v, %v", s, err)
	}
	for _, args := range [][]string{
		{"x"}, {"-o", "xml"}, {"-starts", "0"}, {"-few", "0"}, {"-many", "2"}, {"-settle", "-1s"}, {"-nothing"},
	} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
	if err := run(t.Context(), []string{"-h"}, io.Discard, io.Discard); err != nil {
		t.Error(err)
	}
}
