package redisstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/controlplane/internal/store/storetest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/support/redistest"
)

func file(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	garbage := file(t, "secret")
	for text, want := range map[string]string{
		"redis://:secret@host:port:x":                                "must be like redis://",
		"http://:secret@host":                                        "must be like redis://",
		"redis://":                                                   "must be like redis://",
		"redis://:secret@host/x/y":                                   "number of a database",
		"redis://:secret@host/-1":                                    "number of a database",
		"redis://u:secret@h:1?addr=:::":                              "addr must be HOST:PORT",
		"redis://u:secret@h:1?a=%zz":                                 "parameters of the Redis URL cannot be read",
		"redis://u:secret@h:1?max_retries=secret":                    `unknown parameter "max_retries"`,
		"redis://u:secret@h:1?cluster=secret":                        "parameter cluster cannot be read",
		"redis://u:secret@h:1?pool_size=secret":                      "parameter pool_size cannot be read",
		"redis://u:secret@h:1/2?cluster=true":                        "has none but 0",
		"redis://u:secret@h:1?cluster=true&master_name=m":            "do not watch a Redis Cluster",
		"redis://u:secret@h:1?password_file=x":                       "leave out one of the two",
		"redis://u@h:1?password_file=missing":                        "password_file of the Redis URL: open missing",
		"redis://h:1?ca_file=x":                                      "rediss://",
		"rediss://h:1?ca_file=missing":                               "ca_file of the Redis URL: open missing",
		"rediss://h:1?ca_file=" + url.QueryEscape(garbage):           "holds no certificate",
		"rediss://h:1?cert_file=x":                                   "given together",
		"rediss://h:1?cert_file=missing&key_file=" + garbage:         "open missing",
		"rediss://h:1?key_file=" + garbage + "&cert_file=" + garbage: "it holds no CERTIFICATE in PEM",
	} {
		_, err := redisstore.Open(text, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// In a cluster, a request with buckets of all tags calls each server many times at once.
func TestTheConnectionsToAServerOfACluster(t *testing.T) {
	for parameters, want := range map[string]bool{
		"cluster=true": true, "cluster=true&pool_size=3": false, "cluster=true&pool_size=32": true,
	} {
		s, err := redisstore.Open("redis://h:1?"+parameters, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		if n := s.Client().(*redis.ClusterClient).Options().PoolSize; n >= 32 != want {
			t.Errorf("%s: %d connections to a server", parameters, n)
		}
	}
}

// The whole suite through TLS with a client certificate, as a user with only the rights of ACL.
func TestTLSAndLeastRights(t *testing.T) {
	t.Parallel()
	certificates := redistest.MakeCertificates(t)
	password := file(t, "open sesame\n")
	storetest.Run(t, func(t *testing.T) *storetest.Instance {
		server, addr := redistest.StartTLS(t, certificates, durable...)
		grantACL := func() {
			args := append([]string{"ACL", "SETUSER", "weir", "on", `">open sesame"`}, strings.Fields(redisstore.ACL)...)
			if got := server.Do(args...); got != "+OK" {
				t.Fatal(got)
			}
		}
		grantACL()
		url := tlsURL(addr, certificates) + "&password_file=" + password
		s, set := virtual(t, openURL(t, url, slog.New(slog.DiscardHandler)))
		t.Cleanup(func() {
			if got := server.Do("ACL", "LOG"); got != "" {
				t.Errorf("commands were refused:\n%s", got)
			}
		})
		admin := redis.NewClient(&redis.Options{Addr: server.Addr(), DB: 1})
		t.Cleanup(func() { admin.Close() })
		instance := &storetest.Instance{
			Store: s, SetClock: set, StepsBack: true, KeepsNodes: true, Age: age(admin), Fewer: 5,
		}
		instance.Restart = func(t *testing.T) { // A lost connection with TLS is noticed by the first call only.
			server.Restart()
			grantACL()
			instance.Store, instance.SetClock = virtual(t, openURL(t, url, slog.New(slog.DiscardHandler)))
		}
		return instance
	})
}

func tlsURL(addr string, c redistest.Certificates) string {
	return "rediss://weir@" + addr + "/1?" +
		url.Values{"ca_file": {c.CA}, "cert_file": {c.ClientCert}, "key_file": {c.ClientKey}}.Encode()
}

func TestTLSTrustsNoOtherCertificate(t *testing.T) {
	certificates := redistest.MakeCertificates(t)
	_, addr := redistest.StartTLS(t, certificates)
	for name, query := range map[string]string{
		"an authority that the system does not know": "",
		"another authority":                          "?ca_file=" + redistest.MakeCertificates(t).CA,
		"another name":                               "?server_name=elsewhere&ca_file=" + certificates.CA,
		"no client certificate":                      "?ca_file=" + certificates.CA,
	} {
		s := openURL(t, "rediss://"+addr+query, slog.New(slog.DiscardHandler))
		if _, err := s.Secret(t.Context(), [16]byte{1}); err == nil {
			t.Errorf("%s: it is spoken to", name)
		}
	}
	s := openURL(t, strings.Replace(tlsURL(addr, certificates), "weir@", "", 1), slog.New(slog.DiscardHandler))
	if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
		t.Error(err)
	}
}

// An authority that is replaced in its file holds for the next connection, in both directions.
func TestAuthoritiesAreReadAgain(t *testing.T) {
	certificates := redistest.MakeCertificates(t)
	server, addr := redistest.StartTLS(t, certificates)
	right, err := os.ReadFile(certificates.CA)
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(redistest.MakeCertificates(t).CA)
	if err != nil {
		t.Fatal(err)
	}
	server.Do(append([]string{"ACL", "SETUSER", "weir", "on", "nopass"}, strings.Fields(redisstore.ACL)...)...)
	s := openURL(t, strings.Replace(tlsURL(addr, certificates), "weir@", "weir:any@", 1), slog.New(slog.DiscardHandler))
	for _, step := range []struct {
		authority []byte
		trusted   bool
	}{{right, true}, {other, false}, {[]byte("damaged"), false}, {right, true}, {nil, true}} {
		if err := os.WriteFile(certificates.CA, step.authority, 0o600); err != nil {
			t.Fatal(err)
		}
		server.Do("CLIENT", "KILL", "USER", "weir")
		await(t, fmt.Sprintf("trust is %v", step.trusted), func() bool {
			_, err := s.Secret(t.Context(), [16]byte{1})
			return (err == nil) == step.trusted
		})
		if got := s.WrongFiles()["ca_file"]; (got != "") == bytes.Contains(step.authority, []byte("BEGIN")) {
			t.Errorf("%.20q: %q is reported", step.authority, got)
		}
	}
}

// A file of authorities that also holds something else, as bundles of a system do: the others count
// from the start on, and it is reported.
func TestAWrongAuthorityLeavesTheOthersAtTheStart(t *testing.T) {
	certificates := redistest.MakeCertificates(t)
	_, addr := redistest.StartTLS(t, certificates)
	right, err := os.ReadFile(certificates.CA)
	if err != nil {
		t.Fatal(err)
	}
	const none = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	if err := os.WriteFile(certificates.CA, append([]byte(none), right...), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openURL(t, strings.Replace(tlsURL(addr, certificates), "weir@", "", 1), slog.New(slog.DiscardHandler))
	if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
		t.Error(err)
	}
	if got := s.WrongFiles()["ca_file"]; !strings.Contains(got, "line 1") {
		t.Errorf("%q is reported", got)
	}
}

// A password that is changed in its file is used by the next connection.
func TestPasswordFileIsReadAgain(t *testing.T) {
	server := redistest.Start(t)
	server.Do(append([]string{"ACL", "SETUSER", "weir", "on", ">first"}, strings.Fields(redisstore.ACL)...)...)
	path := file(t, "first")
	s := openURL(t, "redis://weir@"+server.Addr()+"?password_file="+path, slog.New(slog.DiscardHandler))
	if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
		t.Fatal(err)
	}
	server.Do("ACL", "SETUSER", "weir", "resetpass", ">second")
	server.Do("CLIENT", "KILL", "USER", "weir")
	if err := os.WriteFile(path, []byte("second\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, "the new password", func() bool {
		_, err := s.Secret(t.Context(), [16]byte{1})
		return err == nil
	})
}

// A Redis that may forget counters is complained of, once.
func TestInspection(t *testing.T) {
	t.Parallel()
	forgetful := []string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}
	for name, c := range map[string]struct {
		options []string
		acl     string
		want    string
		refused bool
	}{
		"unlimited memory":       {options: []string{"--maxmemory-policy", "allkeys-lru"}},
		"full memory is refused": {options: []string{"--maxmemory", "100mb"}},
		"full memory forgets":    {options: forgetful, refused: true},
		"buckets are forgotten": {
			options: []string{"--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl"}, refused: true,
		},
		"no right to look": {options: forgetful, acl: "-info", want: "no right to the command INFO"},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t, c.options...)
			args := append([]string{"ACL", "SETUSER", "weir", "on", ">x"}, strings.Fields(redisstore.ACL+" "+c.acl)...)
			if got := server.Do(args...); got != "+OK" {
				t.Fatal(got)
			}
			url := "redis://weir:x@" + server.Addr()
			if c.refused {
				s := openURL(t, url, slog.New(slog.DiscardHandler))
				for range 3 {
					var unfit *redisstore.UnfitError
					if _, err := s.Secret(t.Context(), [16]byte{1}); !errors.As(err, &unfit) {
						t.Errorf("a Redis that may evict is used: %v", err)
					}
				}
				c.want = "maxmemory-policy noeviction"
			}
			checkInspection(t, url, c.want, 1)
		})
	}
	t.Run("every server of a cluster", func(t *testing.T) {
		cluster := redistest.StartCluster(t, 3, false, forgetful...)
		checkInspection(t, cluster.URL(), "maxmemory-policy noeviction", 3)
	})
}

func checkInspection(t *testing.T, url, want string, times int) {
	t.Helper()
	var log bytes.Buffer
	s := openURL(t, url, slog.New(slog.NewTextHandler(&log, nil)), redisstore.MayEvict(true))
	for range 3 {
		if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	if want == "" {
		want, times = "level=WARN", 0
	}
	if got := strings.Count(log.String(), want); got != times {
		t.Errorf("%q is logged %d times, want %d:\n%s", want, got, times, log.String())
	}
}

// A client of a cluster needs some more rights than a client of one server.
func TestClusterLeastRights(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false,
		append([]string{"--user", "weir", "on", ">x"}, strings.Fields(redisstore.ACL)...)...)
	s := found(t, openURL(t, strings.Replace(cluster.URL(), "redis://", "redis://weir:x@", 1),
		slog.New(slog.DiscardHandler)))
	slot := cluster.Slot(keyOfBucket7)
	from := cluster.Primary(slot)
	d := startDemand(t, s, params(t, 1000, quota.Second, 1000), keyhash.Key{7}, keyhash.Key{8}, keyhash.Key{9})
	d.awaitCalls(t, 20)
	cluster.MoveSlot(slot, cluster.Primaries[from], cluster.Primaries[(from+1)%3])
	if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
		t.Error(err)
	}
	d.awaitCalls(t, 20)
	d.end(t, 0)
	for _, server := range cluster.Primaries {
		if got := server.Do("ACL", "LOG"); got != "" {
			t.Errorf("commands were refused:\n%s", got)
		}
	}
}
