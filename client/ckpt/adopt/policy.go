package adopt

import (
	"context"
	"time"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// Never says that no directory becomes a step by itself, also if the policy of a directory above says
// so. Only SetPolicy takes it.
const Never Format = "never"

// SetPolicy sets on a directory which directories below it become steps by themselves: those of a
// format, none (Never), or those that the policy of the directory above says (empty). The last file
// that a framework writes makes its directory the step whose number is at the end of the directory's
// name, in the run that is the directory above. For Megatron the run is the directory of the tracker
// file. Nothing below the directory may change for quiet before; 0: as long as is right for the format, 10 s, and
// 30 s for hf. A directory of the Trainer of transformers must also have trainer_state.json, which is its last file.
// The other parts of the directory's policy stay. Two callers at the same time may undo each other's change.
func SetPolicy(ctx context.Context, c *client.Client, dir moraine.InodeID, f Format, quiet time.Duration) error {
	format, ok := formats[f]
	switch {
	case f == Never:
		format = wire.CheckpointFormat_CHECKPOINT_FORMAT_NONE
	case !ok && f != "":
		return invalid("format %q: it must be dcp, megatron, hf, never, or empty to inherit", f)
	}
	if quiet < 0 || quiet > 0 && (!ok || quiet < time.Millisecond) {
		return invalid("%v without changes: it goes with dcp, megatron or hf, and is 1ms or more", quiet)
	}
	resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_GetPolicy{GetPolicy: &wire.GetPolicy{Inode: uint64(dir)}}})
	if err != nil {
		return err
	}
	own := resp.GetPolicy().GetOwn()
	if own == nil {
		own = &wire.Policy{}
	}
	if own.Checkpoint == nil {
		own.Checkpoint = &wire.CheckpointPolicy{}
	}
	own.Checkpoint.Format, own.Checkpoint.QuietMillis = format, uint64(quiet.Milliseconds())
	_, err = rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_SetPolicy{SetPolicy: &wire.SetPolicy{Inode: uint64(dir), Policy: own}}})
	return err
}
