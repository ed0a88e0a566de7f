package fuse

import (
	"slices"
	"strings"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
)

// namespaces are those of attributes on Linux. The kernel checks who may use each.
var namespaces = []string{"user", "trusted", "security", "system"}

// checkXattrName answers as a local file system does for a name outside of the
// namespaces, and for a namespace without a name.
func checkXattrName(name string) gofuse.Status {
	space, rest, _ := strings.Cut(name, ".")
	switch {
	case !slices.Contains(namespaces, space) || len(space) == len(name):
		return gofuse.ENOTSUP
	case rest == "":
		return gofuse.EINVAL
	}
	return gofuse.OK
}
