package policyfiles_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policyfiles"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
)

// quotaOf is a policy set with one policy.
func quotaOf(quota int) string {
	return fmt.Sprintf(`version: weir/v1
policies:
  - {name: api, partition: [client_ip], limit: {quota: %d, window: 1m}, mode: local}
`, quota)
}

// site is a store, and replicas that take the policy set from a path.
type site struct {
	t     *testing.T
	path  string
	store *localstore.Store
	sets  *policies.Service
	log   bytes.Buffer
}

func newSite(t *testing.T, path string) *site {
	store, err := localstore.Open(t.TempDir(), slog.New(slog.DiscardHandler), localstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	d := &site{t: t, path: path, store: store}
	d.sets = d.replica()
	return d
}

// replica is a further service on the same store.
func (d *site) replica() *policies.Service {
	return policies.New(policies.Config{Store: d.store, Now: time.Now, Files: d.path})
}

func (d *site) watch(sets *policies.Service, nodes int) *policyfiles.Watch {
	return policyfiles.New(policyfiles.Config{
		Path: d.path, Sets: sets, Nodes: nodes, Removes: 25, Log: slog.New(slog.NewTextHandler(&d.log, nil)),
	})
}

// look looks until a change has settled.
func (d *site) look(w *policyfiles.Watch) {
	for range 2 {
		w.Look(d.t.Context())
	}
}

// wants checks the version in force and whether it is the version of the files.
func (d *site) wants(w *policyfiles.Watch, version uint64, quota int, inForce bool) {
	d.t.Helper()
	current, err := d.sets.Refresh(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	var now uint64
	var limit int64
	if current != nil {
		now, limit = current.Version.Number, current.Set.Policies[0].Limits[0].Quota
	}
	if now != version || limit != int64(quota) || w.InForce() != inForce {
		d.t.Errorf("version %d with %d, of the files: %v; want %d with %d, %v\n%s",
			now, limit, w.InForce(), version, quota, inForce, &d.log)
	}
}

func (d *site) write(name, text string) {
	d.t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func TestAFileIsThePolicySet(t *testing.T) {
	d := newSite(t, filepath.Join(t.TempDir(), "weir.yaml"))
	w := d.watch(d.sets, 0)
	steps := []struct {
		name    string
		text    string // nothing removes the file
		looks   int
		version uint64
		quota   int
		inForce bool
		log     string
	}{
		{"no file yet", "", 2, 0, 0, false, "cannot be read"},
		{"the first set, seen once: it may still be written", quotaOf(10), 1, 0, 0, false, ""},
		{"and again", quotaOf(10), 1, 1, 10, true, "a new version"},
		{"nothing new", quotaOf(10), 3, 1, 10, true, ""},
		{"changed", quotaOf(20), 2, 2, 20, true, "limit 10 per 1m → 20 per 1m"},
		{"broken", strings.Replace(quotaOf(30), "30", "-30", 1), 2, 2, 20, false, `weir.yaml:3: policy \"api\": limit.quota`},
		{"an empty list", strings.Replace(quotaOf(30), "{name", "{match: {paths: []}, name", 1),
			2, 2, 20, false, `weir.yaml:3: policy \"api\": match.paths: is an empty list`},
		{"no YAML", "version: [", 2, 2, 20, false, "is not YAML"},
		{"gone", "", 2, 2, 20, false, "cannot be read"},
		{"mended", quotaOf(30), 2, 3, 30, true, ""},
		{"back to what was", quotaOf(10), 2, 4, 10, true, ""},
	}
	for _, s := range steps {
		d.log.Reset()
		if s.text == "" {
			os.Remove(d.path)
		} else {
			d.write(d.path, s.text)
		}
		for range s.looks {
			w.Look(t.Context())
		}
		t.Log(s.name)
		d.wants(w, s.version, s.quota, s.inForce)
		if !strings.Contains(d.log.String(), s.log) || strings.Count(d.log.String(), "\n") > 1 {
			t.Errorf("%s: the log should say %q, once:\n%s", s.name, s.log, &d.log)
		}
	}
	list, _, err := d.sets.List(t.Context(), 0, 10)
	if err != nil || len(list) != 4 || list[0].Author != d.path {
		t.Errorf("versions %+v, %v", list, err)
	}
	entries, err := d.store.Audit(t.Context(), "", 10)
	if err != nil || len(entries) != 4 || entries[0].By != d.path || entries[0].Action != "policyset.put" {
		t.Errorf("audit %+v, %v", entries, err)
	}
}

// A ConfigMap is mounted as links that change all at once.
func TestAMountedFolderChangesAsAWhole(t *testing.T) {
	folder := t.TempDir()
	d := newSite(t, folder)
	w := d.watch(d.sets, 0)
	mount := func(generation string, files map[string]string) {
		dir := filepath.Join(folder, ".."+generation)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			d.write(filepath.Join(dir, name), text)
		}
		os.Remove(filepath.Join(folder, "..data"))
		if err := os.Symlink(dir, filepath.Join(folder, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	team := "version: weir/v1\npolicies:\n" +
		"  - {name: team, partition: [client_ip], limit: {quota: 5, window: 1s}, mode: local}\n"
	mount("one", map[string]string{"a.yaml": quotaOf(10), "b.yaml": team, "README.md": "not a policy"})
	for _, name := range []string{"a.yaml", "b.yaml", "README.md"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	d.look(w)
	d.wants(w, 1, 10, true)
	if current, _ := d.sets.Current(); len(current.Set.Policies) != 2 {
		t.Errorf("policies %+v", current.Set.Policies)
	}
	mount("two", map[string]string{"a.yaml": quotaOf(20), "b.yaml": quotaOf(7)})
	d.look(w)
	d.wants(w, 1, 10, false)
	if want := `/b.yaml:3: the policy \"api\" stands in a.yaml:3 already`; !strings.Contains(d.log.String(), want) {
		t.Errorf("no %q in\n%s", want, &d.log)
	}
	mount("three", map[string]string{"a.yaml": quotaOf(20), "b.yaml": team})
	d.look(w)
	d.wants(w, 2, 20, true)
}

func TestReplicasWithTheSameFilesPutOneVersion(t *testing.T) {
	d := newSite(t, filepath.Join(t.TempDir(), "weir.yaml"))
	other := d.replica()
	one, two := d.watch(d.sets, 0), d.watch(other, 0)
	d.write(d.path, quotaOf(10))
	for _, w := range []*policyfiles.Watch{one, two, one, two} {
		d.look(w)
	}
	d.wants(one, 1, 10, true)
	d.write(d.path, quotaOf(20))
	d.look(two)
	d.wants(two, 2, 20, true)
	d.look(one)
	d.wants(one, 2, 20, true)
}

// Only the files change the policy set; all may be tried.
func TestRequestsDoNotChangeWhatFilesSay(t *testing.T) {
	d := newSite(t, filepath.Join(t.TempDir(), "weir.yaml"))
	w := d.watch(d.sets, 0)
	d.write(d.path, quotaOf(10))
	d.look(w)
	d.write(d.path, quotaOf(20))
	d.look(w)
	change := policies.Change{Any: true, Document: []byte(quotaOf(99)), Format: "application/yaml"}
	_, err := d.sets.Put(t.Context(), change)
	if code, detail, _ := errs.CodeOf(err); code != errs.KeptInFiles || !strings.Contains(detail, d.path) {
		t.Errorf("a change: %v, %q", err, detail)
	}
	if _, err := d.sets.Rollback(t.Context(), 1, policies.Change{Any: true}); !errors.Is(err, errs.KeptInFiles) {
		t.Errorf("a rollback: %v", err)
	}
	change.DryRun = true
	if out, err := d.sets.Put(t.Context(), change); err != nil || out.Version != 3 {
		t.Errorf("a trial: %+v, %v", out, err)
	}
	d.wants(w, 2, 20, true)
}

// A changed set goes to some nodes first. A set that an operator takes back stays back.
func TestARolloutOfFiles(t *testing.T) {
	d := newSite(t, filepath.Join(t.TempDir(), "weir.yaml"))
	other := d.replica()
	w, second := d.watch(d.sets, 25), d.watch(other, 25)
	d.write(d.path, quotaOf(10))
	d.look(w)
	d.wants(w, 1, 10, true) // There is nothing that the other nodes could stay on.
	d.write(d.path, quotaOf(20))
	d.look(w)
	d.look(second)
	d.wants(w, 1, 10, true)
	if active, _ := d.sets.Active(); active.State.Rollout == nil || active.State.Rollout.Nodes != 25 ||
		active.State.Rollout.Version != 2 {
		t.Fatalf("rollout %+v", active.State.Rollout)
	}
	d.write(d.path, quotaOf(30)) // It has to wait.
	d.look(w)
	if w.InForce() || !strings.Contains(d.log.String(), "promote it") {
		t.Errorf("a second rollout: %v\n%s", w.InForce(), &d.log)
	}
	d.write(d.path, quotaOf(20))
	d.look(w)
	if _, err := d.sets.Roll(t.Context(), policies.RollChange{Any: true, Nodes: 0}); err != nil {
		t.Fatal(err)
	}
	d.look(w)
	d.look(w)
	d.wants(w, 1, 10, false)
	if !strings.Contains(d.log.String(), "the policy set in force is not the policy set of the files") {
		t.Errorf("the log:\n%s", &d.log)
	}
	d.look(second)
	again := d.watch(d.replica(), 25) // as after a restart
	d.look(again)
	d.wants(again, 1, 10, false)
	if active, _ := d.sets.Active(); active.State.Rollout != nil {
		t.Errorf("the withdrawn set is rolled out again: %+v", active.State.Rollout)
	}
	d.write(d.path, quotaOf(40))
	d.look(w)
	if _, err := d.sets.Roll(t.Context(), policies.RollChange{Any: true, Nodes: policies.Everyone}); err != nil {
		t.Fatal(err)
	}
	d.look(w)
	d.wants(w, 3, 40, true)
}

func TestFoldersThatAreNoPolicySet(t *testing.T) {
	empty := t.TempDir()
	large := t.TempDir()
	for i := range 3 {
		name := filepath.Join(large, fmt.Sprintf("%d.yaml", i))
		if err := os.WriteFile(name, bytes.Repeat([]byte("# "), 200_000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	many := t.TempDir()
	for i := range policyfiles.MaxFiles + 1 {
		if err := os.WriteFile(filepath.Join(many, fmt.Sprintf("%d.yaml", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nested := t.TempDir()
	for _, name := range []string{"a.yaml", "docs/README.md", ".git/a.yaml", "team/deep/b.yaml"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(nested, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(nested, name), []byte(quotaOf(10)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// A ConfigMap mounts a path with a slash so: a link to a hidden folder.
	mounted := t.TempDir()
	for name, target := range map[string]string{"..data": nested, "team": "..data/team", "a.yaml": "..data/a.yaml"} {
		if err := os.Symlink(target, filepath.Join(mounted, name)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		mounted:                         "team/deep/b.yaml: is not read, since only the files of the folder itself are",
		nested:                          "team/deep/b.yaml: is not read, since only the files of the folder itself are",
		empty:                           "there is no policy file in it",
		large:                           "more than 1000 policy files or 1048576 bytes",
		many:                            "more than 1000 policy files or 1048576 bytes",
		filepath.Join(empty, "nothing"): "no such file",
	} {
		if _, err := policyfiles.Load(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if err := os.RemoveAll(filepath.Join(nested, "team")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(mounted, "team")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{nested, mounted} {
		if _, err := policyfiles.Load(path); err != nil {
			t.Errorf("folders without policy files, and hidden ones: %v", err)
		}
	}
}

// namesOf is a policy set with policies of these names.
func namesOf(names ...string) string {
	text := "version: weir/v1\npolicies:\n"
	for _, name := range names {
		text += "  - {name: " + name + ", partition: [], limit: {quota: 10, window: 1m}}\n"
	}
	if len(names) == 0 {
		return "version: weir/v1\npolicies: []\n"
	}
	return text
}

// A change that removes more policies than files may remove waits, and the log names the policies:
// a team's missing file takes no limits out of force.
func TestFilesRemoveNoMoreThanTheyMay(t *testing.T) {
	folder := t.TempDir()
	d := newSite(t, folder)
	w := d.watch(d.sets, 0)
	at := func(name string) string { return filepath.Join(folder, name) }
	version := func() uint64 {
		current, _ := d.sets.Current()
		return current.Version.Number
	}
	d.write(at("a.yaml"), namesOf("a1", "a2", "a3", "a4", "a5"))
	d.write(at("b.YAML"), namesOf("b1", "b2", "b3"))
	d.look(w)
	if current, _ := d.sets.Current(); version() != 1 || len(current.Set.Policies) != 8 {
		t.Fatalf("%d policies: a file .YAML counts, too\n%s", len(current.Set.Policies), &d.log)
	}
	for name, change := range map[string]func(){
		"a team's file is missing": func() { os.Remove(at("b.YAML")) },
		"all is empty":             func() { d.write(at("a.yaml"), namesOf()); d.write(at("b.YAML"), namesOf()) },
	} {
		d.log.Reset()
		removed := "remove 3 of 8 policies (b1, b2, b3)"
		if name == "all is empty" {
			removed = "remove 8 of 8 policies (a1, a2, a3, a4, a5 and 3 more)"
		}
		change()
		for range 5 {
			d.look(w)
		}
		if said := strings.Count(d.log.String(), "which is more than --policyset-removes 25%"); version() != 1 ||
			w.InForce() || !w.Refused() || said != 1 || !strings.Contains(d.log.String(), removed) {
			t.Errorf("%s: version %d, said %d times\n%s", name, version(), said, &d.log)
		}
		d.write(at("a.yaml"), namesOf("a1", "a2", "a3", "a4", "a5"))
		d.write(at("b.YAML"), namesOf("b1", "b2", "b3"))
		d.look(w)
		if !w.InForce() || !strings.Contains(d.log.String(), "in force again") {
			t.Errorf("%s, mended: in force %v\n%s", name, w.InForce(), &d.log)
		}
	}
	d.write(at("b.YAML"), namesOf("b1"))
	d.look(w)
	if !w.InForce() || version() != 2 {
		t.Errorf("a quarter may go: version %d\n%s", version(), &d.log)
	}
	for n, left := range [][]string{{"a1", "a2", "a3", "a4"}, {"a1", "a2", "a3"}, {"a1", "a2"}, {"a1"}} {
		d.write(at("a.yaml"), namesOf(left...))
		if d.look(w); version() != uint64(3+n) {
			t.Errorf("one may always go, to %v: version %d\n%s", left, version(), &d.log)
		}
	}
}
