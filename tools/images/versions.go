package main

import (
	"regexp"
	"strings"
)

// debianVersion returns a version for dpkg. dpkg sorts a build before a release, the release, and a
// build after it in this order.
func debianVersion(version string) string {
	return versionFor(version, "~", "+")
}

// releaseCandidate has the number of a release, the number of its candidate, and the commits since.
var releaseCandidate = regexp.MustCompile(`^(\d+\.\d+\.\d+)-rc\.?(\d+)(?:-(.+))?$`)

// wheelVersion returns a version for pip, according to PEP 440. pip sorts other builds before a
// release, its candidates, the release, and a build after it in this order.
func wheelVersion(version string) string {
	parts := releaseCandidate.FindStringSubmatch(version)
	if parts == nil {
		return versionFor(version, ".dev0+", "+")
	}
	candidate := parts[1] + "rc" + parts[2]
	if parts[3] == "" {
		return candidate
	}
	return candidate + "+" + strings.ReplaceAll(parts[3], "-", ".")
}

// semanticVersion returns a version for npm and Helm, according to SemVer. They sort each build in
// front of the release, also a build after it: SemVer has no version for such a build.
func semanticVersion(version string) string {
	return versionFor(version, "-", "-")
}

// versionFor returns a version that begins with the number of a release. before stands between the
// number and the rest of a build before the release, after between the number and the rest of a
// build after it, as git describes it.
func versionFor(version, before, after string) string {
	number, rest, _ := strings.Cut(version, "-")
	switch {
	case !isNumber(number):
		return "0.0.0" + after + strings.ReplaceAll(version, "-", ".")
	case rest == "":
		return number
	case rest == "dirty" || rest[0] >= '0' && rest[0] <= '9':
		return number + after + strings.ReplaceAll(rest, "-", ".")
	}
	return number + before + strings.ReplaceAll(rest, "-", ".")
}

// isNumber reports whether a text is a number with three parts, like 0.1.0.
func isNumber(text string) bool {
	return strings.Count(text, ".") == 2 && strings.Trim(text, "0123456789.") == ""
}
