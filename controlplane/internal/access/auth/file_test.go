package auth_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
)

func TestSecretsAreLongAndDiffer(t *testing.T) {
	one, two := auth.NewSecret(), auth.NewSecret()
	if one == two || len(one) != len("weir_")+43 || !strings.HasPrefix(one, "weir_") {
		t.Errorf("%q, %q", one, two)
	}
}

func TestLinesAreReadAsWritten(t *testing.T) {
	expires := time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)
	var text strings.Builder
	want := auth.Tokens{
		{Name: "ci", Role: auth.Editor, Sum: auth.Sum("one")},
		{Name: "ci", Role: auth.Editor, Sum: auth.Sum("two"), Expires: expires},
		{Name: "zone-a/envoys", Role: auth.Node, Sum: auth.Sum("three")},
	}
	for _, token := range want {
		text.WriteString("\n# comment\n  " + token.Line() + " # another")
	}
	got, problems := auth.ParseFile([]byte(text.String()))
	if len(problems) > 0 || len(got) != len(want) {
		t.Fatalf("%+v, %v", got, problems)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
	if !strings.Contains(text.String(), " sha256:7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed") ||
		strings.Contains(text.String(), "two") {
		t.Error("the lines do not hold hashes alone:", text.String())
	}
}

func TestEveryWrongLineIsNamed(t *testing.T) {
	sum := strings.Repeat("0", 64)
	_, problems := auth.ParseFile([]byte(strings.Join([]string{
		"a viewer " + sum, "a admin sha256:" + strings.Repeat("1", 64), "b viewer " + sum, "two words",
		"a viewer weir_the-token-itself",
		"c viewer " + strings.Repeat("2", 64) + " tomorrow", "ä viewer " + strings.Repeat("3", 64),
		"d owner " + strings.Repeat("4", 64),
	}, "\n")))
	want := []string{
		"line 2: a has the role viewer already", "line 3: this token is in the file already",
		"line 4: must be a name, a role",
		"line 5: the third field must be sha256:", "line 6: the fourth field must be a time like 2027-01-31T00:00:00Z",
		`line 7: the name "ä" must be`, `line 8: "owner" is not a role`,
	}
	if len(problems) != len(want) {
		t.Fatalf("%v", problems)
	}
	for i, p := range problems {
		if !strings.HasPrefix(p.Error(), want[i]) || strings.Contains(p.Error(), "weir_the") {
			t.Errorf("%v, want %s", p, want[i])
		}
	}
	var many strings.Builder
	for i := range auth.MaxTokens + 1 {
		many.WriteString(auth.Token{Name: "x", Role: auth.Viewer, Sum: auth.Sum(string(rune(i)))}.Line() + "\n")
	}
	if _, problems := auth.ParseFile([]byte(many.String())); len(problems) != 1 {
		t.Errorf("%d tokens: %v", auth.MaxTokens+1, problems)
	}
}

// watched is a tokens file with a ring that follows it.
type watched struct {
	t     *testing.T
	path  string
	ring  *auth.Ring
	watch *auth.Watch
	log   bytes.Buffer
	now   time.Time
}

func newWatched(t *testing.T) *watched {
	w := &watched{t: t, path: filepath.Join(t.TempDir(), "tokens"), now: time.Unix(1_000_000, 0)}
	w.ring = auth.NewRing(auth.Tokens{{Name: "root", Role: auth.Admin, Sum: auth.Sum("root")}},
		func() time.Time { return w.now })
	w.watch = auth.NewWatch(w.path, w.ring, slog.New(slog.NewTextHandler(&w.log, nil)))
	return w
}

func (w *watched) write(lines ...string) {
	w.t.Helper()
	if err := os.WriteFile(w.path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.watch.Look(w.now)
}

// expect says which secrets are accepted.
func (w *watched) expect(when string, secrets ...string) {
	w.t.Helper()
	for _, secret := range []string{"root", "old", "new"} {
		want := strings.Contains(" "+strings.Join(secrets, " ")+" ", " "+secret+" ")
		if _, err := w.ring.Find(secret); (err == nil) != want {
			w.t.Errorf("%s: %s: %v", when, secret, err)
		}
	}
}

// A named pipe in the place of the file changes nothing, and the next file counts: no process that
// might write into the pipe is waited for.
func TestAPipeInThePlaceOfTheFile(t *testing.T) {
	w := newWatched(t)
	before := auth.Token{Name: "ci", Role: auth.Editor, Sum: auth.Sum("old")}
	after := auth.Token{Name: "ci", Role: auth.Editor, Sum: auth.Sum("new")}
	w.write(before.Line())
	if err := errors.Join(os.Remove(w.path), syscall.Mkfifo(w.path, 0o600)); err != nil {
		t.Fatal(err)
	}
	w.watch.Look(w.now)
	w.expect("a pipe", "root", "old")
	if w.watch.Trouble() == "" {
		t.Error("nothing says that the file is wrong")
	}
	if err := os.Remove(w.path); err != nil {
		t.Fatal(err)
	}
	w.write(after.Line())
	w.expect("a file again", "root", "new")
}

// A token is replaced while everything runs: at each moment one of the callers' tokens is accepted.
func TestRotation(t *testing.T) {
	w := newWatched(t)
	before := auth.Token{Name: "ci", Role: auth.Editor, Sum: auth.Sum("old")}
	after := auth.Token{Name: "ci", Role: auth.Editor, Sum: auth.Sum("new")}
	w.write(before.Line())
	w.expect("at first", "root", "old")
	w.write(before.Line(), after.Line())
	w.expect("while both are there", "root", "old", "new")
	w.write(after.Line())
	w.expect("at last", "root", "new")
	w.write()
	w.expect("with an empty file, as of a tool that has not written yet", "root", "new")
	w.write("# none")
	w.expect("with a comment alone", "root")
}

// A file that is empty or gone changes nothing, and the log says so once for each trouble.
func TestAFileThatIsGoneChangesNothing(t *testing.T) {
	w := newWatched(t)
	old := auth.Token{Name: "ci", Role: auth.Editor, Sum: auth.Sum("old")}
	w.write(old.Line())
	if err := os.Remove(w.path); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		w.watch.Look(w.now)
		w.expect("without the file", "root", "old")
	}
	if n := strings.Count(w.log.String(), "the tokens file is wrong"); n != 1 || w.watch.Trouble() == "" {
		t.Errorf("the log says so %d times, and Trouble %q:\n%s", n, w.watch.Trouble(), &w.log)
	}
	w.write("", " ")
	for range 3 {
		w.watch.Look(w.now)
		w.expect("with an empty file", "root", "old")
	}
	if got := w.watch.Trouble(); !strings.HasPrefix(got, "not readable, empty or too long") {
		t.Errorf("behind the words `the file of --tokens-file is`: %q", got)
	}
	if w.write(old.Line()); w.watch.Trouble() != "" {
		t.Errorf("there again: %q", w.watch.Trouble())
	}
}

// A token whose line is gone is accepted no longer, whatever mistakes other lines hold; a line that
// is wrong accepts none, and is reported with its number and nothing that stands in it.
func TestAMistakeKeepsNoOtherTokenAlive(t *testing.T) {
	old := auth.Token{Name: "ci", Role: auth.Editor, Sum: auth.Sum("old")}
	fresh := auth.Token{Name: "cd", Role: auth.Viewer, Sum: auth.Sum("new")}
	for name, wrong := range map[string]string{
		"no fields": "ci editor of everything", "no role": strings.Replace(old.Line(), "editor", "editr", 1),
		"a secret in place of its sum": "ci editor s3cret-of-somebody", "no time": old.Line() + " tomorrow",
		"a second role": strings.Replace(fresh.Line(), "viewer", "admin", 1), "a cut line": old.Line()[:60],
	} {
		w := newWatched(t)
		w.write(old.Line(), fresh.Line())
		w.expect(name+": before", "root", "old", "new")
		w.write("# rotated", fresh.Line(), wrong)
		w.expect(name+": while it may be half written", "root", "old", "new")
		w.watch.Look(w.now)
		w.expect(name+": two seconds later", "root", "new")
		for range 3 {
			w.watch.Look(w.now)
		}
		if got := w.watch.Trouble(); got != "wrong in line 3, which accepts no token: the log says why" {
			t.Errorf("%s: Trouble says %q", name, got)
		}
		if n := strings.Count(w.log.String(), "the tokens file is wrong"); n != 1 {
			t.Errorf("%s: the log says so %d times:\n%s", name, n, &w.log)
		}
		if w.write(fresh.Line()); w.watch.Trouble() != "" {
			t.Errorf("%s: mended: %q", name, w.watch.Trouble())
		}
	}
}

func TestExpiry(t *testing.T) {
	w := newWatched(t)
	in := func(d time.Duration, secret string) auth.Token {
		return auth.Token{Name: "ci", Role: auth.Editor, Sum: auth.Sum(secret), Expires: w.now.Add(d)}
	}
	const day = 24 * time.Hour
	first, second := in(20*day, "old"), in(60*day, "new")
	w.write(first.Line(), second.Line())
	if got := w.ring.Expiring(); len(got) != 1 || got[0].Name != "ci" || !got[0].Expires.Equal(second.Expires) {
		t.Errorf("expiring: %+v", got)
	}
	said := func() int { return strings.Count(w.log.String(), "a token expires soon") }
	pass := func(d time.Duration) {
		w.now = w.now.Add(d)
		w.watch.Look(w.now)
	}
	if pass(5 * day); said() != 0 {
		t.Error("15 days before it is said already")
	}
	if pass(day); said() != 1 {
		t.Errorf("14 days before: %s", &w.log)
	}
	if pass(time.Hour); said() != 1 {
		t.Error("an hour later it is said again")
	}
	if pass(day); said() != 2 {
		t.Error("a day later it is not said again")
	}
	pass(13 * day)
	w.expect("after 20 days", "root", "new")
	if _, err := w.ring.Find("old"); !errors.Is(err, auth.ErrExpired) {
		t.Error(err)
	}
	if !strings.Contains(w.log.String(), "a token has expired") {
		t.Errorf("%s", &w.log)
	}
	w.write(first.Line(), auth.Token{Name: "ci", Role: auth.Editor, Sum: auth.Sum("new")}.Line())
	if got := w.ring.Expiring(); len(got) != 0 {
		t.Errorf("a name with a token that never expires: %+v", got)
	}
}
