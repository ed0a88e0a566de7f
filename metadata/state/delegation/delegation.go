// Package delegation gives directories to single sessions. Such a session changes the directory by
// itself, and sends the changes in batches.
package delegation

import (
	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/transport/wire"
)

// Delegate gives a directory to the session.
func Delegate(*kvtx.Tx, *wire.Delegate) (*wire.MetaResponse, error) {
	return nil, kvtx.Fail(moraine.Unimplemented, "delegate", "", "")
}

// EndDelegation takes directories back from the session.
func EndDelegation(*kvtx.Tx, *wire.EndDelegation) (*wire.MetaResponse, error) {
	return kvtx.Done(), nil
}

// Batch applies a batch.
func Batch(*kvtx.Tx, *wire.Batch) (*wire.MetaResponse, error) {
	return nil, kvtx.Fail(moraine.Unimplemented, "batch", "", "")
}
