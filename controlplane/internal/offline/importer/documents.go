package importer

import "strings"

// Documents reads the documents of files. Source names the files, for Set.Source. The error is a
// *SyntaxError.
func Documents(files []File) (all []*Tree, source string, err error) {
	names := make([]string, len(files))
	for i, f := range files {
		documents, err := ParseTrees(f)
		if err != nil {
			return nil, "", err
		}
		all, names[i] = append(all, documents...), f.Name
	}
	return all, strings.Join(names, ", "), nil
}

// maxLists bounds how deep lists of manifests nest.
const maxLists = 4

// Manifests reads documents of Kubernetes. It splits lists, as kubectl get writes them, into their
// items.
func Manifests(files []File) (all []*Tree, source string, err error) {
	documents, source, err := Documents(files)
	for _, doc := range documents {
		all = appendManifests(all, doc, 0)
	}
	return all, source, err
}

func appendManifests(all []*Tree, t *Tree, depth int) []*Tree {
	if depth == maxLists || !strings.HasSuffix(t.Get("kind").Text(), "List") {
		return append(all, t)
	}
	for _, item := range t.Get("items").Items() {
		all = appendManifests(all, item, depth+1)
	}
	return all
}
