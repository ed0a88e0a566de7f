package view

import (
	"context"
	"fmt"
	"strings"

	"github.com/morainefs/moraine"
	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/internal/jsonname"
	"github.com/morainefs/moraine/internal/rawclient"
	"github.com/morainefs/moraine/transport/wire"
)

// LostRowOf makes a row of a file that has lost bytes.
func LostRowOf(f *wire.LostFile, path string) LostRow {
	row := LostRow{Path: jsonname.Name(path), Inode: moraine.InodeID(f.Inode).String(), Ranges: []LostRange{}, More: f.More}
	for _, r := range f.Ranges {
		row.Ranges = append(row.Ranges, LostRange{Offset: r.Offset, Bytes: r.Length})
	}
	return row
}

// LostRow is what `cluster lost` prints of a file.
type LostRow struct {
	Path   jsonname.Name `json:"path"`
	Inode  string        `json:"inode"`
	Ranges []LostRange   `json:"ranges"`
	More   bool          `json:"more_ranges,omitempty"`
	// Object is the object that had the bytes of an evicted file. In the bucket
	// that object is missing, differs, or is corrupt (State). Other files, such as clones,
	// may have lost the same bytes.
	Object string `json:"object,omitempty"`
	State  string `json:"object_state,omitempty"`
	Others bool   `json:"other_files,omitempty"`
}

// LostRange is a range of a file that is lost.
type LostRange struct {
	Offset uint64 `json:"offset"`
	Bytes  uint64 `json:"bytes"`
}

// What says which ranges a file has lost.
func (r *LostRow) What() string {
	var what []string
	for _, x := range r.Ranges {
		what = append(what, fmt.Sprintf("%s at %d", cli.Size(x.Bytes), x.Offset))
	}
	if r.More {
		what = append(what, "and more")
	}
	text := strings.Join(what, ", ")
	if r.Object == "" {
		return text
	}
	if text == "" {
		text = "bytes of clones of its file"
	} else if r.Others {
		text += " (clones may have lost them too)"
	}
	return text + ": " + r.Object + " is " + r.State
}

// LostFiles lists the files that have lost bytes.
func LostFiles(ctx context.Context, c *cli.Connection) ([]LostRow, error) {
	rows := []LostRow{}
	for after := uint64(0); ; {
		resp, err := rawclient.Of(c).Meta(ctx, &wire.MetaRequest{Op: &wire.MetaRequest_ListLost{ListLost: &wire.ListLost{After: after}}})
		if err != nil {
			return nil, err
		}
		reply := resp.GetLost()
		for _, f := range reply.GetFiles() {
			after = f.Inode
			path := "/" + f.Path
			if f.Path == "" {
				path = "" // it has no name
			}
			rows = append(rows, LostRowOf(f, path))
		}
		if reply.GetMore() && len(reply.GetFiles()) > 0 {
			continue
		}
		return rows, nil
	}
}
