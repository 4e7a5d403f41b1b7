package auth_test

import (
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
)

func TestRoles(t *testing.T) {
	for _, c := range []struct {
		has    auth.Role
		viewer bool
		editor bool
		admin  bool
		node   bool
	}{
		{auth.Viewer, true, false, false, false},
		{auth.Editor, true, true, false, false},
		{auth.Admin, true, true, true, true},
		{auth.Node, false, false, false, true},
		{"", false, false, false, false},
	} {
		for needed, want := range map[auth.Role]bool{auth.Viewer: c.viewer, auth.Editor: c.editor, auth.Admin: c.admin,
			auth.Node: c.node} {
			if c.has.May(needed) != want {
				t.Errorf("a %q may do a thing that needs %s: %v", c.has, needed, !want)
			}
		}
	}
	for _, name := range []string{"viewer", "editor", "admin", "node"} {
		if r, err := auth.ParseRole(name); err != nil || string(r) != name {
			t.Errorf("%s: %v, %v", name, r, err)
		}
	}
	if _, err := auth.ParseRole("Admin"); err == nil {
		t.Error("Admin is taken for a role")
	}
}

func TestFind(t *testing.T) {
	tokens := auth.Tokens{{Name: "a", Role: auth.Viewer, Sum: auth.Sum("first")},
		{Name: "b", Role: auth.Admin, Sum: auth.Sum("second")}, {Name: "empty", Sum: auth.Sum("")}}
	for secret, want := range map[string]string{"first": "a", "second": "b"} {
		if got, ok := tokens.Find(secret); !ok || got.Name != want {
			t.Errorf("%s is %+v, %v", secret, got, ok)
		}
	}
	for _, secret := range []string{"", "third", "firs", "first "} {
		if got, ok := tokens.Find(secret); ok {
			t.Errorf("%q is %+v", secret, got)
		}
	}
	if _, ok := (auth.Tokens)(nil).Find("first"); ok {
		t.Error("no tokens know one")
	}
}
