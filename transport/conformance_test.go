package transport_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/internal/crc"
	"github.com/morainefs/moraine/transport"
	"github.com/morainefs/moraine/transport/memnet"
	"github.com/morainefs/moraine/transport/wire"
	"github.com/stretchr/testify/require"
)

// shortDir is a directory whose path fits in the address of a unix socket.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("", "m")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func random(n int, seed uint64) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1})
	r.Read(p)
	return p
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func put(ctx context.Context, c transport.Chunks, stripe uint64, data ...[]byte) (*wire.PutChunkReply, error) {
	return c.Put(ctx, &wire.PutChunk{Stripe: stripe, Crc: crc.Sum(bytes.Join(data, nil)), Level: 2}, data...)
}

func TestChunks(t *testing.T) {
	for _, n := range networks() {
		t.Run(n.String(), func(t *testing.T) {
			a := newAuthority(t)
			sh := newShelf()
			s := n.serve(t, a, transport.RoleChunkserver, "n1", transport.HandlerForChunks(sh))
			p := n.pool(t, a, transport.RoleClient, "c1")
			checkChunks(t, p.Chunks("n1", s.Addresses()), sh)
		})
	}
}

func TestChunksInMemory(t *testing.T) {
	a := newAuthority(t)
	sh := newShelf()
	n := memnet.New(1)
	node, err := n.Listen("n1", memnet.Options{Role: transport.RoleChunkserver, Cluster: cluster, Keys: a.keys, Handler: transport.HandlerForChunks(sh)})
	require.NoError(t, err)
	d := n.Dialer(transport.Peer{Cluster: cluster, Role: transport.RoleClient, Node: "c1"})
	_, err = d.Chunks("n1", []string{node.Address()}).Sync(testContext(t), &wire.SyncDevices{})
	require.ErrorIs(t, err, moraine.Unauthenticated)
	d.SetToken(a.token(t, "c1", time.Hour))
	checkChunks(t, d.Chunks("n1", []string{node.Address()}), sh)
	require.NoError(t, node.Close())
	n.Wait()
}

func TestMetadataInMemory(t *testing.T) {
	n := memnet.New(1)
	node, err := n.Listen("m1", memnet.Options{Role: transport.RoleMetadata, Cluster: cluster, Handler: transport.HandlerForMetadata(clerk(answer))})
	require.NoError(t, err)
	d := n.Dialer(transport.Peer{Cluster: cluster, Role: transport.RoleChunkserver, Node: "n1"})
	checkMetadata(t, d.Metadata([]string{node.Address()}))
	require.NoError(t, node.Close())
	n.Wait()
}

// chunkSizes are the sizes that checkChunks sends. The first smallSizes of them fit one piece of a reader.
var chunkSizes = []int{0, 1, 4096, 5000, 256 << 10, 1<<20 + 17, moraine.MaxChunkSize + moraine.BlockSize}

const smallSizes = 5

// checkChunks checks what every connection to a chunkserver must do.
func checkChunks(t *testing.T, c transport.Chunks, sh *shelf) {
	checkChunksOf(t, c, sh, chunkSizes)
}

// checkChunksOf is checkChunks of chunks of these sizes only.
func checkChunksOf(t *testing.T, c transport.Chunks, sh *shelf, sizes []int) {
	ctx := testContext(t)
	for i, size := range sizes {
		data := random(size, uint64(i))
		third := size / 3
		reply, err := put(ctx, c, uint64(i+1), data[:third], nil, data[third:])
		require.NoError(t, err)
		require.EqualValues(t, 7, reply.Epoch)

		dst := make([]byte, size+10)
		var passed []byte
		pieces := pieces{of: size}
		got, n, err := c.Get(ctx, &wire.GetChunk{Stripe: uint64(i + 1), Length: uint64(size)}, dst, func(p []byte) {
			pieces.add(p)
			passed = append(passed, p...)
		})
		require.NoError(t, err)
		require.Equal(t, size, n)
		require.True(t, bytes.Equal(data, dst[:size]))
		require.True(t, bytes.Equal(data, passed))
		require.False(t, pieces.bad, "pieces are whole blocks but for the last, and 256 KiB at most")
		require.Equal(t, crc.Sum(data), got.PayloadCrc)
		require.Zero(t, bytes.Trim(dst[size:], "\x00"), "written past the payload")
	}
	dst := make([]byte, 300)
	piece, n, err := c.GetPiece(ctx, &wire.GetPiece{Object: 5, Offset: 7, Length: 300}, dst, nil)
	require.NoError(t, err)
	require.Equal(t, 300, n)
	require.Equal(t, byte(7), dst[0])
	require.Equal(t, crc.Sum(dst), piece.PayloadCrc)
	_, _, err = c.GetPiece(ctx, &wire.GetPiece{Length: 1}, dst, nil)
	require.ErrorIs(t, err, moraine.Unavailable)
	_, _, err = c.GetPiece(ctx, &wire.GetPiece{Object: 5, Length: 301}, dst, nil)
	require.ErrorIs(t, err, moraine.InvalidArgument)
	_, _, err = c.Get(ctx, &wire.GetChunk{Stripe: 99, Length: 1}, make([]byte, 1), nil)
	var e *moraine.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, moraine.Error{Op: "get", Ref: "a chunk", Kind: moraine.NotFound}, *e)

	_, err = c.Put(ctx, &wire.PutChunk{Stripe: 50, Crc: 1}, []byte("x"))
	require.ErrorIs(t, err, moraine.Corrupt)
	_, err = c.Put(ctx, &wire.PutChunk{}, make([]byte, transport.MaxPayload+1))
	require.ErrorIs(t, err, moraine.TooLarge)

	st, err := c.Stat(ctx, &wire.StatDevices{})
	require.NoError(t, err)
	require.Equal(t, "n1", st.Devices[0].Host)
	_, err = c.Sync(ctx, &wire.SyncDevices{})
	require.NoError(t, err)

	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, p := range sh.peers {
		require.Equal(t, transport.RoleClient, p.Role)
		require.Equal(t, "c1", p.Node)
		require.Equal(t, cluster, p.Cluster)
		require.Equal(t, []uint32{1}, p.Token.Tenants)
	}
	require.Equal(t, len(sizes)+1, sh.freed, "payloads released: of all chunks and a piece")
}

func TestMetadata(t *testing.T) {
	for _, n := range networks() {
		t.Run(n.String(), func(t *testing.T) {
			a := newAuthority(t)
			s := n.serve(t, a, transport.RoleMetadata, "m1", transport.HandlerForMetadata(clerk(answer)))
			p := n.pool(t, a, transport.RoleChunkserver, "n1")
			checkMetadata(t, p.Metadata(s.Addresses()))
		})
	}
}

func answer(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error) {
	switch req.Number {
	case 1:
		return nil, &moraine.Error{Op: "meta.Do", Ref: "m1", Kind: moraine.NotLeader, Err: &transport.LeaderHint{ID: "m2", Addresses: []string{"a:1", "b:2"}}}
	case 2:
		return &wire.MetaResponse{Error: &wire.Error{Kind: uint32(moraine.NotEmpty), Op: "remove", Ref: "/d"}}, nil
	case 3:
		panic("a bug")
	case 4:
		return nil, errors.New("what kind of error is this")
	case 5:
		<-ctx.Done()
		return nil, ctx.Err()
	case 6:
		return nil, nil
	}
	p := transport.PeerFrom(ctx)
	return &wire.MetaResponse{Result: &wire.MetaResponse_Cluster{Cluster: &wire.ClusterReply{Cluster: []byte(p.Node), Incarnation: req.Session}}}, nil
}

// checkMetadata checks what every connection to a metadata server must do.
func checkMetadata(t *testing.T, m transport.Metadata) {
	ctx := testContext(t)
	resp, err := m.Do(ctx, &wire.MetaRequest{Session: 77})
	require.NoError(t, err)
	require.EqualValues(t, 77, resp.GetCluster().Incarnation)
	require.Equal(t, "n1", string(resp.GetCluster().Cluster))

	_, err = m.Do(ctx, &wire.MetaRequest{Number: 1})
	require.ErrorIs(t, err, moraine.NotLeader)
	var hint *transport.LeaderHint
	require.ErrorAs(t, err, &hint)
	require.Equal(t, transport.LeaderHint{ID: "m2", Addresses: []string{"a:1", "b:2"}}, *hint)

	_, err = m.Do(ctx, &wire.MetaRequest{Number: 2})
	require.ErrorIs(t, err, moraine.NotEmpty)
	require.EqualError(t, err, "remove: /d: directory not empty")

	for _, n := range []uint64{3, 4, 6} {
		_, err = m.Do(ctx, &wire.MetaRequest{Number: n})
		require.Error(t, err)
		require.Equal(t, moraine.Internal, moraine.KindOf(err), "%v", err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = m.Do(short, &wire.MetaRequest{Number: 5})
	require.ErrorIs(t, err, moraine.Timeout)

	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, err = m.Do(gone, &wire.MetaRequest{Number: 5})
	require.ErrorIs(t, err, moraine.Canceled)

	var wg sync.WaitGroup
	for g := range 20 {
		wg.Go(func() {
			for i := range 50 {
				want := uint64(g*1000 + i)
				resp, err := m.Do(ctx, &wire.MetaRequest{Session: want})
				if err != nil || resp.GetCluster().Incarnation != want {
					t.Errorf("request %d: %v %v", want, resp, err)
				}
			}
		})
	}
	wg.Wait()
}
