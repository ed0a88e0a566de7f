package moraine

import "strings"

// NextName splits the first component off a slash separated path; it skips empty ones and ".".
// The name is empty if none is left. The service and the cache of a client both walk paths with
// it, so that both find the same.
func NextName(path string) (name, rest string) {
	for path != "" {
		name, path, _ = strings.Cut(path, "/")
		if name != "" && name != "." {
			return name, path
		}
	}
	return "", ""
}
