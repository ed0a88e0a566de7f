// Package transport carries requests between clients, metadata servers and
// chunkservers. It has messages (package wire), framing, connection pools,
// deadlines, identity, and the service interfaces with the remote clients that
// mirror them.
//
// A request is a protobuf message, optionally followed by one raw payload. The
// payload never passes through protobuf. The sender writes it with writev from the
// caller's buffers. The receiver reads it from the socket into the buffer that it
// chose, and checksums each piece as it arrives.
//
// One path through the package, a PutChunk: the client calls Chunks.Put
// (remote.go). The Pool chooses a connection of class Bulk, or makes one (peer.go,
// connect.go). Header, message and payload leave in one writev (call.go,
// writer.go). The server's reader decodes the header (serve.go) and runs the
// handler (handlers.go). The handler takes a buffer and reads the payload into it,
// piece by piece (payload.go). The connection continues to read while the handler
// works. Its answer returns the same way, and wakes the caller.
//
// docs/formats/frame.md describes the bytes on a connection, and
// docs/formats/certificate.md who may open which. Raft's log uses streams of raw
// bytes (raftstream.go) that are opened and authenticated the same way.
//
// The package retries only requests of which nothing was sent. It does not search
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

// Class separates traffic, so that a 4 MiB payload never delays a heartbeat: each
// class has connections of its own.
type Class uint8

const (
	// Control carries small requests: metadata, heartbeats.
	Control Class = 1
	// Bulk carries chunks; a client needs a session token for it.
	Bulk Class = 2
	// Raft carries the metadata servers' log, as raw bytes in Raft's format.
	Raft Class = 3
)

// Role is what a certificate permits its holder to be.
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
	// Scope is the directory that confines a client, "/" for all.
	Scope    string
	ReadOnly bool
	// Squash maps root to nobody (the default for clients).
	Squash bool
	// Token holds the claims of the session token presented on a Bulk connection.
	// It is nil if there was none: servers need none between each other.
	Token *wire.TokenClaims
	Addr  string
	// Key names the certificate's public key, and Serial is its serial number in
	// hexadecimal. Issued and NotAfter are when it was issued and when it expires.
	// All are zero in mode insecure.
	Key              pki.KeyID
	Serial           string
	Issued, NotAfter time.Time

	principal []byte // set once the peer is complete; nil: not computed
	dataKey   []byte // seals the tokens on the connection; nil on an encrypted one
}

// PeerFrom returns the peer whose request ctx belongs to. It returns nil for a call
// without a connection (a test, an embedded server).
func PeerFrom(ctx context.Context) *Peer {
	p, _ := ctx.Value(peerKey{}).(*Peer)
	return p
}

// WithPeer returns a context in which PeerFrom finds p.
func WithPeer(ctx context.Context, p *Peer) context.Context {
	return context.WithValue(ctx, peerKey{}, p)
}

type peerKey struct{}

// Payload is the raw bytes after a message, not yet read: the receiver chooses
// their buffer. The receiver of a Payload must call ReadInto or Discard, once,
// before it answers.
type Payload interface {
	// Len returns the number of bytes.
	Len() int
	// ReadInto reads exactly Len bytes into dst[:Len]. If each is not nil, it gets
	// consecutive pieces of at most 256 KiB of dst as they arrive, while they are in the
	// processor's cache. Every piece but the last is a multiple of 4 KiB. On error
	// the contents of dst are undefined.
	ReadInto(dst []byte, each func(piece []byte)) error
	// Discard drops the bytes.
	Discard() error
}

// Request is one request as a server's handler sees it.
type Request struct {
	Kind    Kind
	Class   Class
	Peer    *Peer
	Message proto.Message
	// Payload is nil if there is none.
	Payload Payload
	// Trace is the first caller's trace id, for logs.
	Trace moraine.UUID
}

// Response is a handler's answer. Exactly one of Message and an error is used.
type Response struct {
	Message proto.Message
	// Payload is written after the message. The slices are not copied and must not
	// change until Release is called.
	Payload [][]byte
	// Release, if not nil, is called once when Payload has been written or the
	// connection is gone.
	Release func()
}

// Handler serves requests. For a request with a payload, Serve runs on the
// connection's reader until it has consumed the payload. A handler that waits for a
// buffer thus delays only that connection: this is the flow control. The reader
// resumes as soon as the payload is consumed, and Serve continues on its own. Serve
// must be safe for concurrent use. An error becomes the Error of a reply; a
// *moraine.Error keeps its kind, op and ref. ctx ends at the caller's deadline,
// when the caller cancels, and when the connection is lost.
type Handler interface {
	Serve(ctx context.Context, req *Request) (*Response, error)
}

// Metadata is the metadata service as its clients see it. Do answers one request. A
// reply whose Error is set is returned as that error (a *moraine.Error). The caller
// must retry NotLeader and Unavailable errors and lost connections: Redirect finds
// the leader.
type Metadata interface {
	Do(ctx context.Context, req *wire.MetaRequest) (*wire.MetaResponse, error)
}

// Chunks is one chunkserver as its clients see it. Methods may be called
// concurrently. After an exceeded deadline it is unknown whether the request took
// effect; every request is safe to repeat.
type Chunks interface {
	// Put stores the chunk whose bytes are data, concatenated. data must not change
	// until Put returns.
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
	// Metadata returns the metadata server at one of addrs. These are the addresses
	// of one server; connections spread over them. Metadata does not wait for the
	// server.
	Metadata(addrs []string) Metadata
	// Chunks returns the chunkserver node at one of addrs. A peer whose certificate
	// names another node is refused.
	Chunks(node string, addrs []string) Chunks
	// SetToken sets the session token for Bulk connections from now on. It is also
	// presented on open connections.
	SetToken(token []byte)
	// SetRevoked sets the revoked certificates from now on. Connections to servers
	// with such a certificate end, and no new ones are made. Without certificates
	// it does nothing.
	SetRevoked(r *Revocations)
	Close() error
}
