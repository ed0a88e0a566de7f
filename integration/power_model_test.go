package integration_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
)

// content is the model of a file: the digest of its bytes.
type content [sha256.Size]byte

// fileUser works on a directory of its own, one operation at a time. It knows the
// allowed states: the acknowledged one, and that with the one unanswered operation.
type fileUser struct {
	dir      string
	rng      *rand.Rand
	made     bool               // its directory was acknowledged
	files    map[string]content // acknowledged
	pending  map[string]content // files after the running operation; nil: none
	acks     int
	unknowns int
}

func newFileUser(i int, seed uint64) *fileUser {
	return &fileUser{dir: fmt.Sprintf("/user%d", i), rng: rand.New(rand.NewPCG(seed, 100+uint64(i))), files: map[string]content{}}
}

// schemes are those with which files are written; the first is the service's
// choice.
var schemes = []moraine.Scheme{{}, {K: 4, M: 2}, {K: 2, M: 1}, {K: 1, M: 2}, {K: 3, M: 2}}

func (u *fileUser) name() string { return fmt.Sprintf("f%d", u.rng.IntN(6)) }

// step performs one random operation.
func (u *fileUser) step(ctx context.Context, c *client.Client) error {
	if !u.made {
		if _, err := c.MkdirAll(ctx, u.dir, 0); err != nil {
			return err
		}
		u.made = true
	}
	next := maps.Clone(u.files)
	a, b := u.name(), u.name()
	_, there := u.files[a]
	switch n := u.rng.IntN(10); {
	case n < 5 || len(u.files) == 0:
		data := u.bytes()
		next[a] = sha256.Sum256(data)
		scheme := schemes[u.rng.IntN(len(schemes))]
		return u.try(next, func() error { return u.write(ctx, c, a, data, scheme) })
	case n < 7 && there && a != b:
		next[b] = next[a]
		delete(next, a)
		return u.try(next, func() error { return c.Rename(ctx, u.path(a), u.path(b), client.RenameOptions{}) })
	case n < 8 && there:
		delete(next, a)
		return u.try(next, func() error { return c.Remove(ctx, u.path(a)) })
	default:
		return u.read(ctx, c, a)
	}
}

func (u *fileUser) path(name string) string { return u.dir + "/" + name }

// try performs an operation, and records whether it was answered.
func (u *fileUser) try(next map[string]content, do func() error) error {
	u.pending = next
	if err := do(); err != nil {
		u.unknowns++
		return err
	}
	u.files, u.pending = next, nil
	u.acks++
	return nil
}

// bytes makes a file of a length that is often small, or close to that of a block,
// a chunk or a stripe.
func (u *fileUser) bytes() []byte {
	sizes := []int{0, 1 + u.rng.IntN(200), 4096, 64 << 10, 256 << 10, 1 + u.rng.IntN(600<<10)}
	data := make([]byte, max(0, sizes[u.rng.IntN(len(sizes))]+u.rng.IntN(3)-1))
	fill(data, u.rng.Uint64())
	return data
}

// fill writes bytes that depend on seed.
func fill(p []byte, seed uint64) {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	rand.NewChaCha8(key).Read(p) //nolint:errcheck // it never fails
}

func (u *fileUser) write(ctx context.Context, c *client.Client, name string, data []byte, scheme moraine.Scheme) error {
	f, err := c.Create(ctx, u.path(name), client.CreateOptions{Replace: true, Scheme: scheme})
	if err != nil {
		return err
	}
	for len(data) > 0 {
		n := min(len(data), 1+u.rng.IntN(200<<10))
		if _, err := f.Write(data[:n]); err != nil {
			f.Abort()
			return err
		}
		data = data[n:]
	}
	_, err = f.Commit(ctx)
	return err
}

// read reads a file and compares it with the model. A read that fails while nodes
// are down breaks no promise; a missing file does.
func (u *fileUser) read(ctx context.Context, c *client.Client, name string) error {
	want, there := u.files[name]
	got, err := readDigest(ctx, c, u.path(name))
	switch {
	case errors.Is(err, moraine.NotFound) && there, err == nil && !there, err == nil && got != want:
		return u.broken(fmt.Errorf("%s: acknowledged %v, read %x and %v", u.path(name), there, got[:4], err))
	case errors.Is(err, moraine.NotFound):
		return nil
	}
	return err
}

// broken records a broken promise that users see while they work.
func (u *fileUser) broken(err error) error {
	u.pending = map[string]content{"wrong: " + err.Error(): {}}
	u.files = u.pending
	return err
}

func readDigest(ctx context.Context, c *client.Client, path string) (sum content, err error) {
	r, err := c.OpenFile(ctx, path)
	if err != nil {
		return sum, err
	}
	s := r.NewStream(ctx, 0)
	h := sha256.New()
	n, err := io.Copy(h, s)
	if err == nil && n != r.Size() {
		err = fmt.Errorf("%d bytes read of %d", n, r.Size())
	}
	err = errors.Join(err, s.Close())
	return content(h.Sum(nil)), err
}

// check compares the directory with the model, and takes the state found as the
// truth from then on.
func (u *fileUser) check(ctx context.Context, c *client.Client) error {
	is := map[string]content{}
	var failed error
	for e, err := range c.ReadDir(ctx, u.dir) {
		if err != nil {
			failed = err
			break
		}
		sum, err := readDigest(ctx, c, u.path(e.Name))
		if err != nil {
			return fmt.Errorf("%s: %w; %s", u.path(e.Name), err, u.describe(e.Name))
		}
		is[e.Name] = sum
	}
	if failed != nil && (u.made || !errors.Is(failed, moraine.NotFound)) {
		return fmt.Errorf("%s: %w", u.dir, failed)
	}
	if !maps.Equal(is, u.files) && (u.pending == nil || !maps.Equal(is, u.pending)) {
		return fmt.Errorf("%s: %s", u.dir, u.difference(is))
	}
	u.files, u.pending = is, nil
	return nil
}

func (u *fileUser) describe(name string) string {
	_, acked := u.files[name]
	_, asked := u.pending[name]
	return fmt.Sprintf("acknowledged %v, requested %v", acked, asked)
}

func (u *fileUser) difference(is map[string]content) string {
	var out bytes.Buffer
	for _, m := range []map[string]content{u.files, u.pending, is} {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			sum := m[name]
			fmt.Fprintf(&out, "%s=%x ", name, sum[:4])
		}
		out.WriteString("| ")
	}
	return "acknowledged | with the requested change | is: " + out.String()
}
