package fuse_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/stretchr/testify/require"
)

// as runs a command as a user and groups.
const asUser = `as() { local id=$1; shift; setpriv --reuid="$id" --regid="$id" --groups="${groups:-$id}" -- "$@" 2>/dev/null || echo "refused: ${@##*/}"; }
show() { for f in "$@"; do stat -c '%A %a %u %g' "$f"; getfacl --omit-header --numeric --absolute-names "$f"; done; }
`

// aclCases are scripts, which print the same in a directory of a mount as on a local disk. Each begins
// in an empty directory.
var aclCases = map[string]string{
	"a user is named": `umask 022; echo x >f; chmod 640 f; setfacl -m u:1001:rw f; show f; as 1001 cat f; as 1002 cat f
		as 1001 sh -c 'echo y >>f'; cat f; setfacl -x u:1001 f; show f; as 1001 cat f`,
	"a group is named": `echo x >f; chmod 600 f; setfacl -m g:2000:r f; show f; groups=2000 as 1001 cat f; as 1001 cat f`,
	"chmod sets the mask": `echo x >f; chmod 644 f; setfacl -m u:1001:rwx,g:2000:rx f; show f; chmod 640 f; show f; chmod 700 f; show f
		as 1001 cat f; chmod 4775 f; show f; as 1001 cat f`,
	"the list sets the mode": `echo x >f; chmod 4640 f; setfacl -m u::rx,u:1001:rw,g::r,o::x,m::rwx f; show f; setfacl -m m::r f; show f`,
	"three entries are a mode": `echo x >f; setfacl --set u::rwx,g::rx,o::- f; show f; getfattr -d -m - f; setfacl -m u:1001:r f
		setfacl -b f; show f; getfattr -d -m - f`,
	"what is inherited": `umask 077; mkdir d; setfacl -d -m u::rwx,u:1001:rwx,g::rx,g:2000:rw,o::r d; show d
		echo x >d/f; mkdir d/sub; mkdir -m 700 d/private; mkfifo d/pipe; ln -s f d/link; echo y >d/sub/deep; mkdir d/sub/deeper
		show d/f d/sub d/private d/pipe d/sub/deep d/sub/deeper; getfattr -h -d -m - d/link; as 1001 cat d/sub/deep`,
	"a default of three entries": `umask 077; mkdir d; chmod 755 d; setfacl -d --set u::rwx,g::rwx,o::r d; show d
		echo x >d/f; mkdir d/sub; show d/f d/sub; getfattr -d -m - d/f`,
	"the umask without a default": `umask 027; mkdir d; echo x >d/f; mkdir d/sub; mknod d/p p; show d d/f d/sub d/p
		setfacl -m u:1001:rwx d; echo x >d/g; show d d/g`,
	"a default is removed": `mkdir d; setfacl -d -m u:1001:rwx d; show d; setfacl -k d; show d; echo x >d/f; show d/f; setfacl -k d
		setfacl -b d; show d`,
	"a default of a file": `echo x >f; setfacl -d -m u:1001:r f 2>&1 || echo "rc $?"; show f`,
	"a list of a link":    `echo x >f; ln -s f l; setfacl -m u:1001:r l; show f`,
	"setgid with a list": `mkdir d; chown 1001:2000 d; chmod 2770 d; groups=1001 as 1001 setfacl -m u:1002:rwx d; show d
		chmod 2770 d; groups=1001,2000 as 1001 setfacl -m u:1003:rwx d; show d; chmod g+s d; setfacl -m u:1003:r d; show d`,
	"setgid and a default": `mkdir d; chown 0:2000 d; chmod 2775 d; setfacl -d -m g:2001:rwx d; echo x >d/f; mkdir d/sub; show d d/f d/sub`,
	"who may set a list":   `echo x >f; chmod 666 f; as 1001 setfacl -m u:1001:rw f; chown 1001 f; as 1001 setfacl -m u:1002:r f; show f`,
	"a directory is entered": `mkdir d; echo x >d/f; chmod 700 d; as 1001 cat d/f; setfacl -m u:1001:x d; as 1001 cat d/f; as 1001 ls d
		setfacl -m u:1001:rx d; as 1001 ls d; setfacl -m u:1001:- d; as 1001 cat d/f`,
	"the list denies":           `echo x >f; chmod 644 f; setfacl -m u:1001:- f; as 1001 cat f; as 1002 cat f; show f`,
	"links and renames keep it": `echo x >f; setfacl -m u:1001:rw f; ln f g; mv f h; show g h; mkdir d; setfacl -d -m u:1002:r d; mv h d; show d/h`,
	"copies keep it": `mkdir -p t/sub; echo x >t/sub/f; setfacl -m u:1001:rw t/sub/f; setfacl -d -m g:2000:rx t/sub; cp -a t c; rsync -aHAX t/ r/
		show c c/sub c/sub/f r r/sub r/sub/f; tar --acls -cf t.tar t; mkdir x; tar --acls -xf t.tar -C x; show x/t/sub x/t/sub/f`,
	"a long list": `echo x >f; for i in $(seq 100); do echo "u:$((3000+i)):r"; done | setfacl -M - f; show f | md5sum; as 3050 cat f`,
	"a new file is opened": `umask 0; mkdir d; setfacl -d -m u:1001:rw,o::- d; python3 -c '
import os
fd = os.open("d/t", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640); os.write(fd, b"x"); print(oct(os.fstat(fd).st_mode)); os.close(fd)
fd = os.open("d", os.O_TMPFILE | os.O_RDWR, 0o666); os.link("/proc/self/fd/%d" % fd, "d/named", src_dir_fd=fd, follow_symlinks=True)'; show d/t d/named`,
}

// Each script of aclCases prints the same on a mount as on ext4. Root runs them, with users of their
// own numbers.
func TestAccessControlLists(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it needs several users, and so root")
	}
	requireTools(t, "setfacl", "getfacl", "getfattr", "setpriv", "rsync")
	c := startCluster(t, incluster.Options{})
	local := t.TempDir()
	tops := []string{local, mount(t, c, "a").dir, mount(t, c, "b", delegating()).dir}
	for _, top := range tops {
		for dir := top; dir != "/"; dir = filepath.Dir(dir) { // the test's directories are private
			if st, err := os.Stat(dir); err == nil && st.Mode()&0o005 == 0 {
				require.NoError(t, os.Chmod(dir, st.Mode()|0o055))
			}
		}
	}
	if out, err := tryShell(`touch "$1/probe"; setfacl -m u:1001:r "$1/probe"`, local); err != nil {
		t.Skipf("the local disk has no access control lists to compare with: %s", out)
	}
	for name, script := range aclCases {
		t.Run(name, func(t *testing.T) {
			var out []string
			for i, top := range tops {
				dir := filepath.Join(top, strings.ReplaceAll(name, " ", "-")+fmt.Sprint(i))
				require.NoError(t, os.Mkdir(dir, 0o755))
				out = append(out, shell(t, asUser+`cd "$1"; umask 022; `+script, dir))
			}
			require.Equal(t, out[0], out[1])
			require.Equal(t, out[0], out[2], "delegated")
		})
	}
}

// Another mount checks a list as soon as it is set, also if its kernel has been lent names and
// attributes. It never sees a file without the list that it inherits.
func TestAccessControlListsOfAnotherMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it needs several users, and so root")
	}
	c := startCluster(t, incluster.Options{})
	cached := mountOptions{client: client.Config{CacheEntries: 10_000}}
	a := mount(t, c, "a", cached)
	require.NoError(t, os.Mkdir(a.at("d"), 0o755))
	require.NoError(t, os.WriteFile(a.at("d/f"), []byte("x"), 0o600))
	b := mount(t, c, "b", cached) // after the changes: what changes during a loan is not lent for a minute
	for dir := b.dir; dir != "/"; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err == nil && st.Mode()&0o005 == 0 {
			require.NoError(t, os.Chmod(dir, st.Mode()|0o055))
		}
	}
	lend(t, b, b.at("d"), b.at("d/f"))
	for range 10 {
		shell(t, asUser+`as 1001 cat "$1/f" | grep -q refused
			setfacl -m u:1001:r "$2/f"; test "$(as 1001 cat "$1/f")" = x; chmod g-r "$2/f"; as 1001 cat "$1/f" | grep -q refused
			setfacl -b "$2/f"`, b.at("d"), a.at("d"))
	}
	require.NoError(t, tryErr(`setfacl -d -m u:1001:rw,o::- "$1"`, a.at("d")))
	f, err := a.client.Create(t.Context(), "/d/whole", client.CreateOptions{Mode: 0o664}) // by the Go client
	require.NoError(t, err)
	_, err = f.Commit(t.Context())
	require.NoError(t, err)
	require.Equal(t, "user::rw-\nuser:1001:rw-\ngroup::r-x\t#effective:r--\nmask::rw-\nother::---\n\n", shell(t, `getfacl -cpn "$1"`, b.at("d/whole")))
	attr, err := a.client.Stat(t.Context(), "/d/f")
	require.NoError(t, err)
	for _, list := range []string{"", "no list", "\x02\x00\x00\x00", "\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff"} {
		err = a.client.Xattrs().Set(t.Context(), attr.Inode(), "system.posix_acl_access", []byte(list), client.XattrAny)
		require.ErrorIs(t, err, moraine.InvalidArgument, "%q", list)
	}
	require.ErrorIs(t, syscall.Setxattr(a.at("d/f"), "system.other", []byte("x"), 0), syscall.EOPNOTSUPP)
}

func tryErr(script string, args ...string) error {
	_, err := tryShell(script, args...)
	return err
}
