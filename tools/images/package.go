package main

import (
	_ "embed"
	"fmt"
	"path/filepath"
)

// The files of package/ that the packages install.
var (
	//go:embed package/weir.service
	service []byte
	//go:embed package/weir.default
	defaults []byte
	//go:embed package/copyright
	copyright []byte
	//go:embed package/postinst
	afterInstall string
	//go:embed package/prerm
	beforeRemoval string
	//go:embed package/postrm
	afterRemoval string
)

const controlFields = `Package: weir
Version: %s
Architecture: %s
Maintainer: The Weir authors <weir-proxy@users.noreply.github.com>
Section: net
Priority: optional
Homepage: https://github.com/weir-proxy/weir
Recommends: ca-certificates
Suggests: python3-venv
Description: distributed rate limiter for Envoy
 The control plane of Weir, its command line, and the filter for Envoy. The
 package neither starts nor enables the service: it is weir.service.
`

// debianOf returns the package for an architecture like amd64.
func debianOf(s settings, architecture string, binary []byte, p papers) ([]byte, error) {
	manual, err := gzipped(p.manual)
	if err != nil {
		return nil, err
	}
	changes, err := gzipped(p.changes)
	if err != nil {
		return nil, err
	}
	notices, err := gzipped(p.notices)
	if err != nil {
		return nil, err
	}
	return debian{
		control: fmt.Sprintf(controlFields, debianVersion(s.Version), architecture),
		files: []entry{
			{"etc/default/weir", defaults, 0o640, 0},
			{"usr/bin/weir", binary, 0o755, 0},
			{"usr/lib/systemd/system/weir.service", service, 0o644, 0},
			{"usr/share/bash-completion/completions/weir", p.completions["bash"], 0o644, 0},
			{"usr/share/doc/weir/NOTICES.txt.gz", notices, 0o644, 0},
			{"usr/share/doc/weir/changelog.gz", changes, 0o644, 0},
			{"usr/share/doc/weir/copyright", copyright, 0o644, 0},
			{"usr/share/doc/weir/examples/envoy.yaml", p.envoyConfig, 0o644, 0},
			{"usr/share/fish/vendor_completions.d/weir.fish", p.completions["fish"], 0o644, 0},
			{"usr/share/man/man1/weir.1.gz", manual, 0o644, 0},
			{"usr/share/weir/weir.wasm", p.module, 0o644, 0},
			{"usr/share/zsh/vendor-completions/_weir", p.completions["zsh"], 0o644, 0},
		},
		settings: []string{"etc/default/weir"},
		scripts:  map[string]string{"postinst": afterInstall, "prerm": beforeRemoval, "postrm": afterRemoval},
	}.pack()
}

// archiveOf returns the archive for a platform, all files in one folder.
func archiveOf(binary []byte, p papers, folder string) ([]byte, error) {
	files := []entry{
		{"LICENSE", p.license, 0o644, 0},
		{"NOTICES.txt", p.notices, 0o644, 0},
		{"completions/_weir", p.completions["zsh"], 0o644, 0},
		{"completions/weir.bash", p.completions["bash"], 0o644, 0},
		{"completions/weir.fish", p.completions["fish"], 0o644, 0},
		{"envoy.yaml", p.envoyConfig, 0o644, 0},
		{"weir", binary, 0o755, 0},
		{"weir.1", p.manual, 0o644, 0},
		{"weir.service", service, 0o644, 0},
		{"weir.wasm", p.module, 0o644, 0},
	}
	for i := range files {
		files[i].name = filepath.ToSlash(filepath.Join(folder, files[i].name))
	}
	return compressed(files)
}
