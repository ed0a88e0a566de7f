package transport

import (
	"google.golang.org/protobuf/proto"

	"github.com/morainefs/moraine/transport/wire"
)

// kindInfo is what the transport knows of one kind of request.
type kindInfo struct {
	name string // in errors and metrics
	// message returns an empty message of the kind; nil: frames of this kind belong to the
	// connection, and no handler serves them.
	message func() proto.Message
	// control: a chunkserver serves it on connections of class Control too.
	control bool
	// cached: cachedChunks may answer it.
	cached bool
}

// kinds is the table of the kinds. A new kind needs its number (api.go), a line here and, for a
// chunkserver, a case in chunkHandler.
var kinds = [...]kindInfo{
	KindHello:        {name: "hello"},
	KindPing:         {name: "ping"},
	KindRefreshToken: {name: "refresh_token", message: func() proto.Message { return new(wire.RefreshToken) }},
	KindMeta:         {name: "meta", message: func() proto.Message { return new(wire.MetaRequest) }},
	KindPutChunk:     {name: "put_chunk", message: func() proto.Message { return new(wire.PutChunk) }},
	KindGetChunk:     {name: "get_chunk", message: func() proto.Message { return new(wire.GetChunk) }, cached: true},
	KindSyncDevices:  {name: "sync_devices", message: func() proto.Message { return new(wire.SyncDevices) }},
	KindStatDevices:  {name: "stat_devices", message: func() proto.Message { return new(wire.StatDevices) }, control: true},
	KindGetPiece:     {name: "get_piece", message: func() proto.Message { return new(wire.GetPiece) }},
}

// info returns what the transport knows of a kind; the zero value if nothing.
func (k Kind) info() kindInfo {
	if int(k) < len(kinds) {
		return kinds[k]
	}
	return kindInfo{}
}

func (k Kind) String() string {
	if name := k.info().name; name != "" {
		return name
	}
	return "unknown"
}

// newMessage returns an empty message for a request of kind k, or nil for an unknown one.
func newMessage(k Kind) proto.Message {
	if message := k.info().message; message != nil {
		return message()
	}
	return nil
}
