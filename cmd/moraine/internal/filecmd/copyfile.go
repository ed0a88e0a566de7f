package filecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
	"golang.org/x/sys/unix"
)

// copyFile copies one file, following symbolic links.
func (c *copier) copyFile(ctx context.Context, from, to cli.Location) error {
	done := copied{From: jsonname.Name(from.String()), To: jsonname.Name(to.String())}
	mode, err := c.mode(ctx, from)
	if err != nil {
		return err
	}
	if to.Remote {
		if err := c.copyIn(ctx, from, to, mode, &done); err != nil {
			return err
		}
		return c.say(done)
	}
	err = WriteWhole(to.Path, mode, func(f *os.File) error { return c.writeTo(ctx, from, measured{f, &done.Bytes}) })
	if err != nil {
		return err
	}
	return c.say(done)
}

// mode returns the permissions of the copy: those of the file, as far as the umask allows,
// as with cp(1). A file that is not regular, such as a pipe, has none to copy.
func (c *copier) mode(ctx context.Context, from cli.Location) (fs.FileMode, error) {
	mode := fs.FileMode(0o666)
	if from.Remote {
		conn, err := c.sessions.Of(ctx, from)
		if err != nil {
			return 0, err
		}
		attr, err := conn.Stat(ctx, from.Path)
		if err != nil {
			return 0, cli.Named(err, from)
		}
		if attr.IsSpecial() {
			return 0, fmt.Errorf("%s is a %s, which has no content to copy", from, typeNames[attr.Type()])
		}
		mode = fs.FileMode(attr.Mode()) & fs.ModePerm
	} else if st, err := os.Stat(from.Path); err != nil {
		return 0, err
	} else if st.Mode().IsRegular() {
		mode = st.Mode().Perm()
	}
	if mode &^= c.umask; mode == 0 {
		mode = 0o400 // to a cluster, 0 means the default permissions
	}
	return mode, nil
}

// ReadUmask returns the process's umask. The only way to read it is to set it, so this runs
// before the process makes any file.
func ReadUmask() fs.FileMode {
	m := unix.Umask(0)
	unix.Umask(m)
	return fs.FileMode(m)
}

// say reports a copied file to scripts; people see the bar.
func (c *copier) say(done copied) error {
	if !c.env.Global.JSON {
		return nil
	}
	c.saying.Lock()
	defer c.saying.Unlock()
	return cli.PrintJSON(c.env.Out, done)
}

// measured counts the bytes that are written.
type measured struct {
	w io.Writer
	n *int64
}

// Write implements io.Writer.
func (m measured) Write(p []byte) (int, error) {
	n, err := m.w.Write(p)
	*m.n += int64(n)
	return n, err
}

// WriteWhole makes a local file from what fill writes. The file appears under its name when
// it is complete and durable. If writing stops early, the old file stays.
func WriteWhole(name string, mode fs.FileMode, fill func(*os.File) error) error {
	dir := filepath.Dir(name)
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return fmt.Errorf("%s: there is no directory %s: make it first", name, dir)
	}
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(name)+".part-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // no longer there after the rename
	defer tmp.Close()
	if err := fill(tmp); err != nil {
		return err
	}
	if err := errors.Join(tmp.Chmod(mode), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}

// copyIn copies a file into a cluster.
func (c *copier) copyIn(ctx context.Context, from, to cli.Location, mode fs.FileMode, done *copied) error {
	conn, err := c.sessions.Of(ctx, to)
	if err != nil {
		return err
	}
	f, err := conn.Create(ctx, to.Path, client.CreateOptions{Replace: true, Mode: uint32(mode)})
	if err != nil {
		return err
	}
	if err := c.writeTo(ctx, from, measured{f, &done.Bytes}); err != nil {
		f.Abort()
		return err
	}
	result, err := f.Commit(ctx)
	if err != nil {
		return err
	}
	what := "durable"
	if done.Level = result.Attr.Level().String(); result.Attr.Level() == moraine.Memory {
		what = "in memory"
	}
	if done.Bytes > 0 {
		done.Degraded, done.Protects = uint64(result.Degraded), &result.Protects
	}
	if result.Degraded > 0 {
		fmt.Fprintf(c.env.Err, "moraine: %s is %s, but %d of its stripes are below full protection "+
			"(survive the loss of %d). The cluster repairs them when enough hosts are up\n",
			to, what, result.Degraded, result.Protects)
	}
	return nil
}

// writeTo writes the bytes of from to w.
func (c *copier) writeTo(ctx context.Context, from cli.Location, w io.Writer) error {
	if from.Remote {
		conn, err := c.sessions.Of(ctx, from)
		if err != nil {
			return err
		}
		return CopyOut(ctx, conn.Client, from.Path, w, c.bar)
	}
	f, err := os.Open(from.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	// A pipe whose other end is silent must not outlast a Ctrl-C.
	defer context.AfterFunc(ctx, func() { _ = f.Close() })()
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, counted{f, c.bar}, make([]byte, copyPiece))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// CopyOut writes the bytes of a file of the cluster to w.
func CopyOut(ctx context.Context, c *client.Client, p string, w io.Writer, b *cli.Bar) error {
	r, err := c.OpenFile(ctx, p)
	if err != nil {
		return err
	}
	defer r.Close()
	buf := make([]byte, copyPiece)
	for off := int64(0); off < r.Size(); {
		n := min(int64(len(buf)), r.Size()-off)
		if _, err := r.ReadAt(ctx, buf[:n], off); err != nil {
			return err
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		b.Add(n)
		off += n
	}
	return nil
}

// counted adds the bytes that are read to a progress bar.
type counted struct {
	r io.Reader
	b *cli.Bar
}

// Read implements io.Reader.
func (c counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.b.Add(int64(n))
	return n, err
}
