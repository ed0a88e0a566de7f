package fuse_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/integration/incluster"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// A mount that is cut off delays a change for as long as its leases may be trusted. Its open files
// show nothing older than the change after that.
func TestPagesOfAMountThatIsCutOff(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m, other := mount(t, c, "c1", leased()), mount(t, c, "c2", leased())
	model := randomBytes(seed(t), 300<<10)
	require.NoError(t, os.WriteFile(other.at("file"), model, 0o644))
	r := newPagesReader(t, m, "file")
	peek := startPeeker(t, m.at("file"))
	require.Equal(t, fmt.Sprintf("%x", model[100_000:100_000+peekBytes]), peek(100_000))
	m.withPages(t, m.at("file"))
	c.Net.Isolate("c1")
	f, err := os.OpenFile(other.at("file"), os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte("x"), 5000), 100_000)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	copy(model[100_000:], bytes.Repeat([]byte("x"), 5000))
	before, peeked := m.fsys.Reads(), make(chan struct{})
	go func() {
		defer close(peeked)
		for m.fsys.Reads() == before { // the last one waits for the network
			peek(100_000)
		}
	}()
	require.Eventually(t, func() bool { return m.fsys.Reads() > before }, time.Minute, time.Millisecond,
		"the kernel still has pages from before the change")
	c.Net.Rejoin("c1", "*")
	<-peeked
	require.True(t, bytes.Equal(model, r.content()), "the open file shows what was before the change")
	require.Equal(t, fmt.Sprintf("%x", model[100_000:100_000+peekBytes]), peek(100_000), "mapped")
}

// expiring tells a client that its session has expired.
type expiring struct {
	transport.Dialer
	session atomic.Uint64 // the session that has expired
}

func (e *expiring) over(d transport.Dialer) transport.Dialer { e.Dialer = d; return e }

func (e *expiring) Metadata(addrs []string) transport.Metadata {
	return expiringMetadata{e.Dialer.Metadata(addrs), e}
}

type expiringMetadata struct {
	transport.Metadata
	e *expiring
}

func (m expiringMetadata) Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	if s := req.Session; s != 0 && s == m.e.session.Load() {
		return nil, &moraine.Error{Op: "test", Kind: moraine.SessionExpired}
	}
	return m.Metadata.Do(ctx, req)
}

// The pages of a mount go with its session, also those of files that stay open.
func TestPagesOfALostSessionAreDropped(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	sessions := &expiring{}
	o := leased()
	o.over = sessions.over
	m := mount(t, c, "c1", o)
	data := randomBytes(seed(t), 300<<10)
	require.NoError(t, os.WriteFile(m.at("file"), data, 0o644))
	r := newPagesReader(t, m, "file")
	before := m.fsys.Reads()
	sessions.session.Store(uint64(m.client.Session()))
	require.Eventually(t, func() bool {
		require.True(t, bytes.Equal(data, r.content()))
		return m.fsys.Reads() > before
	}, time.Minute, time.Millisecond, "the kernel has the pages of the lost session")
	m.withPages(t, m.at("file"))
	require.NotEqual(t, sessions.session.Load(), uint64(m.client.Session()))
}

// A reader with pages sees what a writer of the same mount has written, before it is committed, and
// where an append really went.
func TestReaderWithPagesAndWriterOfOneMount(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m, other := mount(t, c, "c1", leased()), mount(t, c, "c2", leased())
	model := randomBytes(seed(t), 100<<10+100)
	require.NoError(t, os.WriteFile(m.at("file"), model, 0o644))
	r := newPagesReader(t, m, "file")
	w, err := os.OpenFile(m.at("file"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer w.Close()
	a, err := os.OpenFile(m.at("file"), os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	defer a.Close()
	elsewhere, err := os.OpenFile(other.at("file"), os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	defer elsewhere.Close()
	for i := range 10 {
		require.True(t, bytes.Equal(model, r.content()), "before round %d", i)
		p := randomBytes(uint64(i), 3000)
		_, err := w.WriteAt(p, int64(i*7000))
		require.NoError(t, err)
		model = overwrite(model, p, i*7000)
		require.True(t, bytes.Equal(model, r.content()), "written in round %d", i)
		require.NoError(t, w.Sync())
		for at, f := range []*os.File{elsewhere, a} {
			line := fmt.Sprintf("round %d, mount %d\n", i, at)
			_, err = f.WriteString(line)
			require.NoError(t, err)
			model = append(model[:len(model):len(model)], line...)
		}
		require.True(t, bytes.Equal(model, r.content()), "appended in round %d", i)
		require.NoError(t, w.Truncate(int64(len(model)-3)))
		model = model[:len(model)-3]
		require.True(t, bytes.Equal(model, r.content()), "cut in round %d", i)
	}
}

// Who waits at the end of a file, as tail -f does, reads what another mount appends.
func TestReaderAtTheEndSeesAppends(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m, other := mount(t, c, "c1", leased()), mount(t, c, "c2", leased())
	require.NoError(t, os.WriteFile(other.at("log"), []byte("begin\n"), 0o644))
	r := newPagesReader(t, m, "log")
	_, err := io.ReadAll(r.f)
	require.NoError(t, err)
	w, err := os.OpenFile(other.at("log"), os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	defer w.Close()
	for i := range 20 {
		line := fmt.Sprintf("line %d\n", i)
		_, err := w.WriteString(line)
		require.NoError(t, err)
		require.NoError(t, w.Sync())
		got, err := io.ReadAll(r.f)
		require.NoError(t, err)
		require.Equal(t, line, string(got))
	}
}

// A file that is still open for writing when a reader opens it has no pages for read. A mapping of
// the reader shows what other mounts have written since.
func TestAMappingOfAFileThatWasJustWritten(t *testing.T) {
	c := startCluster(t, incluster.Options{Seed: 1})
	m, other := mount(t, c, "c1", leased()), mount(t, c, "c2", leased())
	model := randomBytes(seed(t), 300<<10)
	w, err := os.Create(m.at("file"))
	require.NoError(t, err)
	defer w.Close()
	_, err = w.Write(model)
	require.NoError(t, err)
	require.NoError(t, w.Sync())
	peek := startPeeker(t, m.at("file"))
	require.Equal(t, fmt.Sprintf("%x", model[:peekBytes]), peek(0))
	require.NoError(t, w.Close())
	f, err := os.OpenFile(other.at("file"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	for i := range 5 {
		for at := 0; at < len(model); at += 100_000 {
			require.Equal(t, fmt.Sprintf("%x", model[at:at+peekBytes]), peek(at), "before change %d", i)
		}
		p := randomBytes(seed(t)+uint64(i)+1, 250<<10)
		_, err = f.WriteAt(p, 0)
		require.NoError(t, err)
		require.NoError(t, f.Sync())
		model = overwrite(model, p, 0)
		for at := 0; at < len(model); at += 100_000 {
			require.Equal(t, fmt.Sprintf("%x", model[at:at+peekBytes]), peek(at), "after change %d", i)
		}
	}
}
