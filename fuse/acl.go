package fuse

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strconv"

	"github.com/morainefs/moraine"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
)

// The kernel checks permissions by the access control lists, which it reads as attributes. It forgets
// a list with the attributes of its inode, and so when a loan ends (names.go). The metadata service
// keeps list and mode equal, and inherits lists.

// setACL sets an access control list. The kernel has checked that the caller may.
func (fs *fileSystem) setACL(cancel <-chan struct{}, in *gofuse.SetXAttrIn, name string, value []byte) gofuse.Status {
	ctx, done := fs.request(cancel, &in.InHeader)
	defer done()
	// The kernel reuses the value after the return.
	list := fs.ids.ClusterList(bytes.Clone(value))
	clear := false
	if name == moraine.AccessACL {
		var err error
		if clear, err = fs.losesSetgid(ctx, &in.InHeader); err != nil {
			return nodeStatus(err)
		}
	}
	return nodeStatus(fs.client.Xattrs().SetACL(ctx, fs.inode(in.NodeId), name, list, clear))
}

// losesSetgid reports whether a file loses its setgid bit if the caller sets its list: as with chmod,
// if the caller is not in its group. A caller whose groups are not visible, in another PID namespace,
// has its first group only.
func (fs *fileSystem) losesSetgid(ctx context.Context, in *gofuse.InHeader) (bool, error) {
	if in.Uid == 0 {
		return false, nil
	}
	attr, err := fs.client.Inodes().Stat(ctx, fs.inode(in.NodeId))
	if err != nil {
		return false, err
	}
	group := fs.shownOwner(attr).Gid
	if group == in.Gid {
		return false, nil
	}
	status, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(in.Pid), 10) + "/status")
	return err != nil || !slices.Contains(groupsOf(status), group), nil
}

// groupsOf reads the supplementary groups in /proc/PID/status.
func groupsOf(status []byte) (groups []uint32) {
	_, rest, _ := bytes.Cut(status, []byte("\nGroups:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	for _, field := range bytes.Fields(line) {
		if gid, err := strconv.ParseUint(string(field), 10, 32); err == nil {
			groups = append(groups, uint32(gid))
		}
	}
	return groups
}
