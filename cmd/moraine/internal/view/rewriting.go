package view

import (
	"fmt"

	"github.com/morainefs/moraine/cmd/moraine/internal/cli"
	"github.com/morainefs/moraine/transport/wire"
)

// RewritingStatus is what the last scan of all files found of stripes in use that are
// partly dead. During a scan it is what that scan has found so far.
type RewritingStatus struct {
	Looking bool   `json:"looking"`
	Rounds  uint64 `json:"rounds"`
	Elapsed uint64 `json:"elapsed_seconds"` // since the scan began, or ended
	Stripes uint64 `json:"stripes"`
	Named   uint64 `json:"named_bytes"`
	Dead    uint64 `json:"dead_bytes"`
	Shared  uint64 `json:"shared_stripes"`
	Chosen  uint64 `json:"chosen_stripes"`
	Moved   uint64 `json:"chosen_bytes"`
	Files   uint64 `json:"packed_files"` // small files in jobs for movers
}

// DescribeRewriting returns what the leader says of the rewriting, nil where it says nothing.
func DescribeRewriting(r *wire.Rewriting) *RewritingStatus {
	if r == nil {
		return nil
	}
	return &RewritingStatus{Looking: r.Looking, Rounds: r.Rounds, Elapsed: r.ElapsedMillis / 1000, Stripes: r.Stripes,
		Named: r.NamedBytes, Dead: r.DeadBytes, Shared: r.SharedStripes, Chosen: r.ChosenStripes, Moved: r.ChosenBytes, Files: r.ChosenFiles}
}

// Words describes it in a line. It is empty where too little is dead to mention, or where a
// scan has not ended yet, and no files are packed.
func (r *RewritingStatus) Words() string {
	if r == nil {
		return ""
	}
	var line string
	if r.Dead > 0 && (!r.Looking || r.Chosen > 0) && r.Dead*20 >= r.Dead+r.Named {
		line = fmt.Sprintf("%s of stripes in use are dead, beside %s that files name", cli.Size(r.Dead), cli.Size(r.Named))
		if r.Chosen > 0 {
			line += fmt.Sprintf("; %s rewritten to free the rest", cli.Are(int(r.Chosen), "stripe is", "stripes are"))
		}
	}
	if r.Files > 0 {
		if line != "" {
			line += "; "
		}
		line += cli.Are(int(r.Files), "small file is", "small files are") + " packed with each other"
	}
	if line != "" && r.Moved > 0 {
		line += fmt.Sprintf(" (%s written again)", cli.Size(r.Moved))
	}
	return line
}
