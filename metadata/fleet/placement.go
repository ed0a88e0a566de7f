package fleet

import (
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/place"
	"github.com/morainefs/moraine/transport/wire"
)

// Request returns the placement request for a client's request. Without a scheme it uses the
// default one of the registered hosts.
func (v *View) Request(scheme *wire.Scheme, chunkLength uint64, avoid []uint32) (place.Request, error) {
	want := place.Request{Scheme: v.DefaultScheme(), ChunkLength: chunkLength, Avoid: DeviceIDs(avoid)}
	if scheme != nil {
		if scheme.K > moraine.MaxChunks || scheme.M > moraine.MaxChunks {
			return want, &moraine.Error{Kind: moraine.InvalidArgument, Err: fmt.Errorf("scheme %d+%d has too many chunks: at most %d in all", scheme.K, scheme.M, moraine.MaxChunks)}
		}
		want.Scheme = moraine.Scheme{K: uint8(scheme.K), M: uint8(scheme.M)}
	}
	if chunkLength > moraine.MaxChunkSize {
		return want, &moraine.Error{Kind: moraine.TooLarge, Err: fmt.Errorf("chunks of %d bytes are too large: at most %d", chunkLength, moraine.MaxChunkSize)}
	}
	return want, nil
}

// DeviceIDs converts device numbers from the wire.
func DeviceIDs(ids []uint32) []moraine.DeviceID {
	if len(ids) == 0 {
		return nil
	}
	out := make([]moraine.DeviceID, len(ids))
	for i, id := range ids {
		out[i] = moraine.DeviceID(id)
	}
	return out
}
