// Package transport carries requests between clients, metadata servers and
// chunkservers: messages (package wire), framing, connection pools, deadlines,
// identity, and the service interfaces with the remote clients that mirror
// them.
//
// A request is a protobuf message, with at most one raw payload behind it. The
// payload never passes through protobuf: it is written with writev from the
// caller's buffers, and read from the socket straight into the buffer that its
// receiver chose, summed piece by piece as it arrives.
//
// The path of a PutChunk: client calls Chunks.Put (remote.go) -> the Pool chooses
// a connection of class Bulk, or makes one (peer.go, connect.go) -> header,
// message and payload leave in one writev (call.go, writer.go) -> the server's
// reader decodes the header (serve.go) and runs the handler (handlers.go), which
// takes a buffer and reads the payload into it, piece by piece (payload.go) ->
// the connection reads on while the handler works -> its answer goes back the
// same way, and wakes the caller.
//
// What a connection carries, byte for byte, is in docs/formats/frame.md, and who
// may open which in docs/formats/certificate.md. Raft's log goes through
// streams of raw bytes (raftstream.go) that are opened and proved the same way.
//
// The package retries only requests of which nothing was sent; it does not look
// for leaders, and does not know what a chunk or an inode is.
package transport

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/transport/pki"
	"github.com/morainefs/moraine/transport/wire"
	"google.golang.org/protobuf/proto"
)

// Kind numbers a request. Append only.
type Kind uint16

const (
	KindHello        Kind = 1
	KindPing         Kind = 2
	KindRefreshToken Kind = 3
	KindMeta         Kind = 16 // wire.MetaRequest
	KindPutChunk     Kind = 32
	KindGetChunk     Kind = 33
	KindSyncDevices  Kind = 34
	KindStatDevices  Kind = 35
	KindGetPiece     Kind = 36
)

// Class separates traffic, so that 4 MiB never stands before a heartbeat: each
// class has connections of its own.
type Class uint8

const (
	// Control carries small requests: metadata, heartbeats.
	Control Class = 1
	// Bulk carries chunks; it needs a session token where a client calls.
	Bulk Class = 2
	// Raft carries the metadata servers' log; its bytes are raft's own.
	Raft Class = 3
)

// Role is what a certificate says its holder may be.
type Role = pki.Role

const (
	RoleMetadata    = pki.RoleMetadata
	RoleChunkserver = pki.RoleChunkserver
	RoleGateway     = pki.RoleGateway
	RoleClient      = pki.RoleClient
	RoleAdmin       = pki.RoleAdmin
)

// Peer is the authenticated other end of a connection.
type Peer struct {
	Cluster moraine.UUID
	Role    Role
	Node    string // node id of the certificate
	// Scope is the directory that a client is confined to, "/" for all.
	Scope    string
	ReadOnly bool
	// Squash maps root to nobody (the default for clients).
	Squash bool
	// Token holds the claims of the session token shown on a Bulk connection;
	// nil where none was (servers among themselves need none).
	Token *wire.TokenClaims
	Addr  string
	// Key names the certificate's public key, Serial is its serial number in
	// hexadecimal, Issued and NotAfter say when it was issued and when it expires.
	// All are zero in mode insecure.
	Key              pki.KeyID
	Serial           string
	Issued, NotAfter time.Time

	principal []byte // set once the peer is complete; nil: not computed
	dataKey   []byte // that tokens on the connection are sealed under; nil on an encrypted one
}

// PeerFrom returns the peer whose request ctx belongs to. In a call that came
// over no connection (a test, an embedded server) it returns nil.
func PeerFrom(ctx context.Context) *Peer {
	p, _ := ctx.Value(peerKey{}).(*Peer)
	return p
}

// WithPeer returns a context in which PeerFrom finds p.
func WithPeer(ctx context.Context, p *Peer) context.Context {
	return context.WithValue(ctx, peerKey{}, p)
}

type peerKey struct{}

// Payload is raw bytes that follow a message, not yet read: the receiver
// chooses where they go. Whoever gets a Payload must call ReadInto or Discard,
// once, before it answers.
type Payload interface {
	// Len returns the number of bytes.
	Len() int
	// ReadInto reads exactly Len bytes into dst[:Len]. It calls each, if not
	// nil, with consecutive pieces of at most 256 KiB of dst as they arrive,
	// while they are in cache; every piece but the last is a multiple of 4 KiB.
	// On error the content of dst is undefined.
	ReadInto(dst []byte, each func(piece []byte)) error
	// Discard throws the bytes away.
	Discard() error
}

// Request is one request as a server's handler sees it.
type Request struct {
	Kind    Kind
	Class   Class
	Peer    *Peer
	Message proto.Message
	// Payload is nil where there is none.
	Payload Payload
	// Trace is carried through from the first caller, for logs.
	Trace moraine.UUID
}

// Response is a handler's answer. Exactly one of Message and an error is used.
type Response struct {
	Message proto.Message
	// Payload is written after the message; the slices are not copied and must
	// stay unchanged until Release is called.
	Payload [][]byte
	// Release, if not nil, is called once when Payload has been written or the
	// connection is gone.
	Release func()
}

// Handler serves requests. Serve is called on the connection's reader for
// requests with a payload, until it has consumed the payload (so that a handler
// that waits for a buffer holds back only that connection: this is the flow
// control), and then goes on by itself; the reader resumes as soon as the
// payload is consumed. It must be safe for concurrent use. An error becomes the
// Error of a reply; one that is a *moraine.Error keeps its kind, op and ref.
// ctx ends at the caller's deadline, when the caller cancels, and when the
// connection is lost.
type Handler interface {
	Serve(ctx context.Context, req *Request) (*Response, error)
}

// Metadata is the metadata service as its clients see it. Do answers one
// request. A reply whose Error is set is returned as that error (a
// *moraine.Error). NotLeader errors, Unavailable ones and lost connections are
// the caller's to retry: Redirect finds the leader.
type Metadata interface {
	Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error)
}

// Chunks is one chunkserver as its clients see it. Methods may be called
// concurrently. A deadline that passes leaves unknown whether the request took
// effect; every request is safe to repeat.
type Chunks interface {
	// Put stores the chunk whose bytes are data, concatenated. data must not
	// change until Put returns.
	Put(ctx context.Context, req *wire.PutChunk, data ...[]byte) (*wire.PutChunkReply, error)
	// Get reads into dst, which must hold req.Length bytes, and calls each as
	// Payload.ReadInto does. It returns the reply and how many bytes it read.
	Get(ctx context.Context, req *wire.GetChunk, dst []byte, each func(piece []byte)) (*wire.GetChunkReply, int, error)
	// GetPiece reads bytes of an object into dst, which must hold req.Length
	// bytes, as Get does. It returns the reply and how many bytes it read.
	GetPiece(ctx context.Context, req *wire.GetPiece, dst []byte, each func(piece []byte)) (*wire.GetPieceReply, int, error)
	Sync(ctx context.Context, req *wire.SyncDevices) (*wire.SyncDevicesReply, error)
	Stat(ctx context.Context, req *wire.StatDevices) (*wire.StatDevicesReply, error)
}

// Dialer finds servers. Pool is the real one, memnet has another.
type Dialer interface {
	// Metadata returns the metadata server at one of addrs (the addresses of
	// one server; connections spread over them). It does not wait for it.
	Metadata(addrs []string) Metadata
	// Chunks returns the chunkserver node at one of addrs; a peer whose
	// certificate names another node is refused.
	Chunks(node string, addrs []string) Chunks
	// SetToken gives the session token that Bulk connections must show, from
	// now on; open connections are refreshed.
	SetToken(token []byte)
	// SetRevoked gives the certificates that servers must not have, from now on:
	// connections to such servers end, and none is made. Where certificates are not used it
	// does nothing.
	SetRevoked(r *Revocations)
	Close() error
}
