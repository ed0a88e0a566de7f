package fuse_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/morainefs/moraine/fuse"
	"github.com/morainefs/moraine/fuse/idmap"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
)

// mapped returns the options of a mount that maps users and groups.
func mapped(t *testing.T, shown *uint32, ranges ...idmap.Range) mountOptions {
	ids, err := idmap.New(ranges, shown)
	require.NoError(t, err)
	return mountOptions{mount: fuse.Config{IDs: idmap.Map{Users: ids, Groups: ids}}}
}

// open lets other users reach a mount: the test's directories are private.
func open(t *testing.T, m *mounted) {
	for dir := m.dir; dir != "/"; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err == nil && st.Mode()&0o005 == 0 {
			require.NoError(t, os.Chmod(dir, st.Mode()|0o055))
		}
	}
}

// Users 1001 and 1002 of the cluster are 2001 and 2002 on a node, and the other way round: owners,
// groups, permissions, new entries of each kind, chown and access control lists, in both directions.
// The node's account nobody owns nothing of the users whose numbers are taken.
func TestUsersAndGroupsAreMapped(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it needs several users, and so root")
	}
	requireTools(t, "setfacl", "getfacl", "setpriv")
	c := startCluster(t, incluster.Options{})
	plain := mount(t, c, "a")
	node := mount(t, c, "b", mapped(t, nil, idmap.Range{Cluster: 1001, Local: 2001, Count: 2}, idmap.Range{Cluster: 2001, Local: 1001, Count: 2}))
	open(t, plain)
	open(t, node)
	require.NoError(t, os.Mkdir(plain.at("d"), 0o777))
	require.NoError(t, os.Chmod(plain.at("d"), 0o777))
	at := func(m *mounted, script string) string { return shell(t, asUser+`cd "$1/d"; umask 022; `+script, m.dir) }

	at(plain, `as 1001 sh -c 'echo x >f; chmod 600 f'; echo y >g; chmod 600 g; chown 2001:1002 g; setfacl -m u:1002:rw,u:1500:r,u:2002:r,u:3000:r,g:1001:r f`)
	require.Equal(t, "2001 2001\n1001 2002\n", at(node, `stat -c '%u %g' f g`))
	require.Equal(t, "x\ny\nrefused: cat f\nx\n", at(node, `as 2001 cat f; as 1001 cat g; as 1001 cat f; as 1002 cat f`))
	require.Equal(t, "refused: cat f\nrefused: cat g\n", at(node, `as 65534 cat f; as 65534 cat g`))
	require.Equal(t, "user::rw-\nuser:1002:r--\nuser:1500:r--\nuser:2002:rw-\nuser:3000:r--\ngroup::---\ngroup:2001:r--\nmask::rw-\nother::---\n\n",
		at(node, `getfacl -cpn f`))

	at(node, `as 2001 sh -c 'echo x >new; mkdir dir; ln -s f link; mkfifo pipe; : >>new'; chown 2002:2001 g
		as 2002 /usr/bin/python3 -c 'import os
fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o644); os.link("/proc/self/fd/%d" % fd, "tmp", src_dir_fd=fd, follow_symlinks=True)'
		setfacl -m u:2001:r,u:1500:rw new`)
	require.Equal(t, "1001 1001\n1001 1001\n1001 1001\n1001 1001\n1002 1002\n1002 1001\n", at(plain, `stat -c '%u %g' new dir link pipe tmp g`))
	require.Equal(t, "user::rw-\nuser:1001:r--\nuser:1500:rw-\ngroup::r--\nmask::rw-\nother::r--\n\n", at(plain, `getfacl -cpn new`))
	require.Equal(t, "2001\n2001\n", at(node, `ls -n new | cut -d ' ' -f 3; find . -name new -printf '%G\n'`))

	// A program that writes a list back as it has read it, or adds to it, leaves the entries of the others.
	at(node, `setfacl -m u:1600:r f; cp -a f copy`)
	for _, name := range []string{"f", "copy"} {
		require.Equal(t, "user::rw-\nuser:1002:rw-\nuser:1500:r--\nuser:1600:r--\nuser:2002:r--\nuser:3000:r--\ngroup::---\ngroup:1001:r--\nmask::rw-\nother::---\n\n",
			at(plain, `getfacl -cpn `+name))
	}
	at(node, `as 1001 sh -c 'echo x >other'; chown 1002:1002 new; setfacl -m u:1001:r new`)
	require.Equal(t, "2001 2001\n2002 2002\n", at(plain, `stat -c '%u %g' other new`))
	require.Equal(t, "user::rw-\nuser:1001:r--\nuser:1500:rw-\nuser:2001:r--\ngroup::r--\nmask::rw-\nother::r--\n\n", at(plain, `getfacl -cpn new`))
}

// With one owner for all files, that user has the rights of each owner. New files belong in the cluster to
// who made them. A chown to the owner that is seen changes nothing, and to another it is refused.
func TestAllFilesOfOneOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it needs several users, and so root")
	}
	requireTools(t, "setpriv")
	c := startCluster(t, incluster.Options{})
	plain := mount(t, c, "a")
	node := mount(t, c, "b", mapped(t, new(uint32(3000)), idmap.Range{Cluster: 7, Local: 3000, Count: 1}, idmap.Range{Cluster: 3000, Local: 7, Count: 1}))
	open(t, plain)
	open(t, node)
	require.NoError(t, os.WriteFile(plain.at("f"), []byte("x\n"), 0o600))
	require.NoError(t, os.Chown(plain.at("f"), 1001, 1002))
	at := func(m *mounted, script string) string { return shell(t, asUser+`cd "$1"; umask 022; `+script, m.dir) }
	require.Equal(t, "3000 3000\nx\nrefused: cat f\n", at(node, `stat -c '%u %g' f; as 3000 cat f; as 1001 cat f`))
	require.NoError(t, os.Chown(node.at("f"), 3000, 3000))
	require.ErrorIs(t, os.Chown(node.at("f"), 1001, -1), syscall.EPERM)
	require.ErrorIs(t, os.Chown(node.at("f"), -1, 1002), syscall.EPERM)
	at(node, `as 3000 sh -c 'echo y >g'; echo z >h`)
	require.Equal(t, "1001 1002\n7 7\n0 0\n", at(plain, `stat -c '%u %g' f g h`))
}
