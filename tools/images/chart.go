package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// chartDir is the Helm chart.
const chartDir = "deploy/helm/weir"

// addChart adds the chart as `helm package` names it, with the version of the release. Links are
// followed, because a chart alone does not have the files that they lead to.
func addChart(s settings, f *folder) error {
	version := semanticVersion(s.Version)
	var files []entry
	err := filepath.WalkDir(filepath.Join(s.Root, chartDir), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == ".helmignore" {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(filepath.Join(s.Root, chartDir), path)
		if err != nil {
			return err
		}
		if inside == "Chart.yaml" {
			content = withVersions(content, version, s.Version)
		}
		files = append(files, entry{"weir/" + filepath.ToSlash(inside), content, 0o644, 0})
		return nil
	})
	if err != nil {
		return err
	}
	packed, err := compressed(files)
	if err != nil {
		return err
	}
	return f.add("weir-"+version+".tgz", packed)
}

// withVersions writes the chart's version and the version of its images into Chart.yaml.
func withVersions(text []byte, version, images string) []byte {
	for field, value := range map[string]string{"version": version, "appVersion": images} {
		line := regexp.MustCompile(`(?m)^` + field + `: .*$`)
		text = line.ReplaceAllLiteral(text, []byte(field+": "+strings.TrimSpace(value)))
	}
	return text
}
