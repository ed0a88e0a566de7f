package content

import (
	"bytes"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/metadata/state/kvtx"
	"github.com/morainefs/moraine/metadata/state/layout"
	"github.com/morainefs/moraine/metadata/state/record"
	"github.com/morainefs/moraine/transport/wire"
)

// checkInline checks a commit that brings the content itself.
func checkInline(op *wire.Commit, ref string) error {
	switch n := len(op.GetContent()); {
	case n == 0:
		return nil
	case n > moraine.MaxInline:
		return kvtx.Fail(moraine.TooLarge, "commit", ref, "the metadata keeps %d bytes of a file at most, and the commit has %d", moraine.MaxInline, n)
	case op.GetMode() != wire.CommitMode_COMMIT_MODE_REPLACE || len(op.GetStripes()) > 0 || len(op.GetExtents()) > 0 || op.GetLevel() > uint32(moraine.NVMe):
		return kvtx.Fail(moraine.InvalidArgument, "commit", ref, "a commit that brings content replaces the file's, and has neither stripes nor extents")
	}
	return nil
}

// takeContent adds the content that the commit brings, as its only extent.
func (w *commitWork) takeContent(t *kvtx.Tx) error {
	if len(w.op.GetContent()) == 0 {
		return nil
	}
	e, err := layout.TakeInline(t, "commit", w.i, w.op.GetContent())
	if err != nil {
		return err
	}
	w.extents = []moraine.Extent{e}
	return w.protectContent(t)
}

// protectContent sets the protection of content that the state has: a majority of the metadata
// servers must stay.
func (w *commitWork) protectContent(t *kvtx.Tx) error {
	servers, err := t.KeysUnder(t.K.Table(record.TabMember), maxServers)
	w.protects = max(len(servers)-1, 0) / 2
	return err
}

// maxServers bounds the metadata servers that are counted.
const maxServers = 16

// hasContent reports whether the file has exactly the content that the commit brings.
func (w *commitWork) hasContent(t *kvtx.Tx) (bool, error) {
	content := w.op.GetContent()
	if len(content) == 0 || w.i.Size != int64(len(content)) || w.i.Inline != w.i.Size {
		return false, nil
	}
	have, err := layout.ExtentsOf(&t.View, w.i, 0, 2)
	if err != nil || len(have) != 1 {
		return false, err
	}
	b, _, err := layout.InlineBytes(&t.View, have[0])
	return err == nil && bytes.Equal(b, content), err
}
