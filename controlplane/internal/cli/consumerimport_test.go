package cli_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/cli"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// The whole file is checked, and then the policy set changes: the second batch of three is refused.
// The first stays, so the message says where to go on, and the third is not sent.
func TestAnImportIsRefusedHalfWay(t *testing.T) {
	written := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.RequestIDHeader, "12345678")
		if r.URL.Query().Has("dry_run") {
			return
		}
		if written++; written == 2 {
			w.Header().Set("Content-Type", api.ProblemType)
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, `{"status": 422, "problems": [{"path": "consumers[4].tier", "reason": "is gone"}]}`)
		}
	}))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "people.csv")
	text := "id,tier\n"
	for n := range 2500 {
		text += fmt.Sprintf("caller-%d,free\n", n)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("WEIR_TOKEN", adminToken)
	var out, errors bytes.Buffer
	code := cli.Main([]string{"consumers", "import", file, "--server", s.URL},
		cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errors}, cli.Build{Version: "v0.0.0-test"})
	want := "weir: " + file + ": nothing after line 1001 is written, since\n  line 1006 tier: is gone\n" +
		"1000 consumers up to line 1001 are written; go on with --from 1002\n"
	if code == 0 || out.Len() > 0 || errors.String() != want {
		t.Errorf("code %d\n%s%s\nwant\n%s", code, &out, &errors, want)
	}
	if written != 2 {
		t.Errorf("%d batches were sent to be written", written)
	}
}

// A file that is no list of consumers is refused at its first long line, of which nothing is
// printed.
func TestAnImportReadsNoEndlessLine(t *testing.T) {
	t.Setenv("WEIR_TOKEN", adminToken)
	for name, head := range map[string]string{"as column names": "", "as a consumer": "id,tier\n"} {
		file := filepath.Join(t.TempDir(), "people.csv")
		if err := os.WriteFile(file, []byte(head), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, 64<<20); err != nil { // It takes no room on the disk.
			t.Fatal(err)
		}
		var out, errors bytes.Buffer
		code := cli.Main([]string{"consumers", "import", file, "--server", "http://127.0.0.1:1"},
			cli.Streams{In: strings.NewReader(""), Out: &out, Err: &errors}, cli.Build{Version: "v0.0.0-test"})
		if code == 0 || errors.Len() > 1000 || !strings.Contains(errors.String(), "has more than 1048576 bytes") {
			t.Errorf("%s: code %d, %d bytes: %.300s", name, code, errors.Len(), errors.String())
		}
	}
}
