package fuse_test

import (
	"fmt"
	"syscall"
	"testing"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/integration/incluster"
)

// TestResentChanges: a daemon took a request and was killed before its answer, and the kernel sends the
// request to the next one. If the service has not carried it out, it does so now. If it has, it does not
// do it twice, and the answer is ETIMEDOUT, which means that it may have taken effect.
func TestResentChanges(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m := mount(t, c, "c1")
	fs, cl := m.fsys.Raw(), m.client.Inodes()
	ctx, root := t.Context(), m.client.Root()
	const late = gofuse.Status(syscall.ETIMEDOUT)
	caller := gofuse.InHeader{NodeId: 1}
	isThere := func(name string) bool {
		_, err := cl.Lookup(ctx, root, name)
		return err == nil
	}
	for what, op := range map[string]struct {
		// makes are the names that exist before. call sends the request. after is which names exist afterwards.
		makes []string
		dirs  bool
		call  func(h gofuse.InHeader, names []string) gofuse.Status
		after map[string]bool
		never bool // even the first of the two is not known to be the first
	}{
		"mkdir": {call: func(h gofuse.InHeader, n []string) gofuse.Status {
			return fs.Mkdir(nil, &gofuse.MkdirIn{InHeader: h, Mode: 0o755}, n[0], &gofuse.EntryOut{})
		}, after: map[string]bool{"a": true}},
		"mknod": {call: func(h gofuse.InHeader, n []string) gofuse.Status {
			return fs.Mknod(nil, &gofuse.MknodIn{InHeader: h, Mode: syscall.S_IFIFO | 0o600}, n[0], &gofuse.EntryOut{})
		}, after: map[string]bool{"a": true}},
		"symlink": {call: func(h gofuse.InHeader, n []string) gofuse.Status {
			return fs.Symlink(nil, &h, "target", n[0], &gofuse.EntryOut{})
		}, after: map[string]bool{"a": true}},
		"link": {makes: []string{"b"}, call: func(h gofuse.InHeader, n []string) gofuse.Status {
			old, err := cl.Lookup(ctx, root, n[1])
			require.NoError(t, err)
			return fs.Link(nil, &gofuse.LinkIn{InHeader: h, Oldnodeid: uint64(old.Inode())}, n[0], &gofuse.EntryOut{})
		}, after: map[string]bool{"a": true, "b": true}},
		"unlink": {makes: []string{"a"}, call: func(h gofuse.InHeader, n []string) gofuse.Status { return fs.Unlink(nil, &h, n[0]) },
			after: map[string]bool{"a": false}},
		"rmdir": {makes: []string{"a"}, dirs: true, call: func(h gofuse.InHeader, n []string) gofuse.Status { return fs.Rmdir(nil, &h, n[0]) },
			after: map[string]bool{"a": false}},
		"rename": {makes: []string{"a"}, call: func(h gofuse.InHeader, n []string) gofuse.Status {
			return fs.Rename(nil, &gofuse.RenameIn{InHeader: h, Newdir: 1}, n[0], n[1])
		}, after: map[string]bool{"a": false, "b": true}},
		"rename without replacement": {makes: []string{"a"}, dirs: true, call: func(h gofuse.InHeader, n []string) gofuse.Status {
			return fs.Rename(nil, &gofuse.RenameIn{InHeader: h, Newdir: 1, Flags: unix.RENAME_NOREPLACE}, n[0], n[1])
		}, after: map[string]bool{"a": false, "b": true}},
		"exchange": {makes: []string{"a", "b"}, call: func(h gofuse.InHeader, n []string) gofuse.Status {
			return fs.Rename(nil, &gofuse.RenameIn{InHeader: h, Newdir: 1, Flags: unix.RENAME_EXCHANGE}, n[0], n[1])
		}, after: map[string]bool{"a": true, "b": true}, never: true},
	} {
		t.Run(what, func(t *testing.T) {
			for _, applied := range []bool{false, true} {
				prefix := fmt.Sprintf("%s %v ", what, applied)
				names := []string{prefix + "a", prefix + "b"}
				of := map[string]client.Attr{}
				for _, n := range op.makes {
					make := cl.Create
					if op.dirs {
						make = cl.Mkdir
					}
					a, err := make(ctx, root, prefix+n, client.NodeOptions{Mode: 0o755, Exclusive: true})
					require.NoError(t, err)
					of[n] = a
				}
				h := caller
				h.Unique = 1000
				if applied {
					require.Equal(t, gofuse.OK, op.call(h, names))
				}
				h.Unique |= fuse.Resent
				want := gofuse.OK
				if applied || op.never {
					want = late
				}
				require.Equal(t, want, op.call(h, names), "applied: %v", applied)
				for n, there := range op.after {
					require.Equal(t, there, isThere(prefix+n), "%s, applied: %v", n, applied)
				}
				if what == "exchange" { // once or never, and not back
					a, err := cl.Lookup(ctx, root, names[0])
					require.NoError(t, err)
					require.Equal(t, applied, a.Inode() == of["b"].Inode())
				}
			}
		})
	}
	require.NoError(t, c.Check())
}
