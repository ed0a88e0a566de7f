package view

import (
	"context"
	"fmt"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// BadObject is an object of which the bucket has no copy, or a copy that differs from the
// record.
type BadObject struct {
	Object string `json:"object"`
	URL    string `json:"url"`
	// State is missing, differs or corrupt.
	State string `json:"state"`
	Error string `json:"error"`
	// Evicted: some bytes of files are only in this object. Path is the file that the
	// object was made from; it is empty where that file has no name. Others, such as
	// clones, may have bytes in it too.
	Evicted bool          `json:"evicted"`
	Path    jsonname.Name `json:"path"`
	Inode   string        `json:"inode"`
	Ranges  []LostRange   `json:"ranges"`
	More    bool          `json:"more_ranges,omitempty"`
	Others  bool          `json:"other_files"`
	id      uint64
}

var objectStates = map[wire.ObjectState]string{
	wire.ObjectState_OBJECT_STATE_MISSING: "missing", wire.ObjectState_OBJECT_STATE_DIFFERS: "differs", wire.ObjectState_OBJECT_STATE_CORRUPT: "corrupt",
}

// BadObjects lists the objects that are missing in their bucket or differ from their
// records.
func BadObjects(ctx context.Context, c *cli.Connection) ([]BadObject, error) {
	out := []BadObject{}
	for after := uint64(0); ; {
		resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListBadObjects{ListBadObjects: &wire.ListBadObjects{After: after}}})
		if err != nil {
			return nil, err
		}
		reply := resp.GetBadObjects()
		for _, w := range reply.GetObjects() {
			after = w.Object.Id
			out = append(out, describeBadObject(w))
		}
		if !reply.GetMore() || len(reply.GetObjects()) == 0 {
			return out, nil
		}
	}
}

func describeBadObject(w *wire.BadObject) BadObject {
	b := BadObject{Object: moraine.ObjectID(w.Object.Id).String(), URL: "s3://" + w.Object.Bucket + "/" + w.Object.Key, State: objectStates[w.State], Error: w.Error,
		Evicted: w.Evicted, Inode: moraine.InodeID(w.Object.Inode).String(), Ranges: []LostRange{}, More: w.More, Others: w.Others, id: w.Object.Id}
	if w.Path != "" {
		b.Path = jsonname.Name("/" + w.Path)
	}
	for _, r := range w.Ranges {
		b.Ranges = append(b.Ranges, LostRange{Offset: r.Offset, Bytes: r.Length})
	}
	return b
}

// Lost is the line of the object in `cluster lost`; false where its file is whole without
// it.
func (b *BadObject) Lost() (LostRow, bool) {
	row := LostRow{Path: b.Path, Inode: b.Inode, Ranges: b.Ranges, More: b.More, Object: b.URL, State: b.State, Others: b.Others}
	if len(b.Ranges) == 0 { // a clone has its bytes
		row.Path, row.Inode = "", ""
	}
	return row, b.Evicted
}

// Words describes the fault.
func (b *BadObject) Words() string {
	how := "is missing in the bucket"
	switch b.State {
	case "differs":
		how = "is another object in the bucket than the recorded one"
	case "corrupt":
		how = "has other bytes in the bucket than the recorded ones"
	}
	file := string(b.Path)
	if file == "" {
		file = "a file without a name"
	}
	if !b.Evicted {
		return fmt.Sprintf("%s %s: %s, whose object it is, is whole without it; `moraine flush` "+
			"uploads it again", b.URL, how, file)
	}
	if len(b.Ranges) == 0 {
		file = "clones of " + file
	} else if b.Others {
		file += " and its clones"
	}
	return fmt.Sprintf("%s %s: evicted bytes of %s are only in this object; restore it, or write the "+
		"files again, or remove them", b.URL, how, file)
}
