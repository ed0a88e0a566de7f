package cli

import (
	"path"

	"github.com/morainefs/moraine"
)

// Named returns err with the address that the user wrote. It replaces the
// metadata's names of the same object: its path within the cluster, its name,
// and the inode ids. It does not change an error that is not a chain of
// *moraine.Error.
func Named(err error, l Location, ids ...moraine.InodeID) error {
	e, ok := err.(*moraine.Error)
	if !ok || !l.Remote {
		return err
	}
	renamed := *e
	if e.Ref == l.Path || e.Ref == path.Base(l.Path) {
		renamed.Ref = l.String()
	}
	for _, id := range ids {
		if id != 0 && e.Ref == id.String() {
			renamed.Ref = l.String()
		}
	}
	renamed.Err = Named(e.Err, l, ids...)
	return &renamed
}
