// Package filecmd has the commands for files and directories: ls, cp, cat, rm, mv, mkdir, du,
// stat and watch.
//
// One path through it: `moraine cp f moraine:///f` -> copyAll reads the addresses -> a copier
// opens a connection for each cluster -> copyFile writes a file that appears when it is
// complete.
package filecmd

import (
	"io/fs"
	"os"
	"time"

	"github.com/morainefs/moraine/client"
	"github.com/morainefs/moraine/internal/jsonname"
)

// entry is one file or directory, as `ls` and `stat` print it.
type entry struct {
	Path       jsonname.Name `json:"path"`
	Type       string        `json:"type"`
	Size       uint64        `json:"size"`
	Mode       string        `json:"mode"`
	UID        uint32        `json:"uid"`
	GID        uint32        `json:"gid"`
	Modified   time.Time     `json:"modified"`
	Inode      string        `json:"inode,omitempty"`
	Generation uint64        `json:"generation,omitempty"`
	Level      string        `json:"level,omitempty"`
	Degraded   uint64        `json:"degraded_stripes"`
	Stored     uint64        `json:"stored_bytes"`
	Clean      bool          `json:"clean"`        // an object has all of it
	Evicted    bool          `json:"evicted"`      // some of it is in an object only
	Inline     uint64        `json:"inline_bytes"` // part of Stored that is in the metadata
	Links      uint32        `json:"links,omitempty"`
	Target     jsonname.Name `json:"target,omitempty"`
}

func describeAttr(p string, a client.Attr) entry {
	e := entry{
		Path: jsonname.Name(p), Size: uint64(a.Size()), UID: a.UID(), GID: a.GID(), Modified: a.ModTime(),
		Inode: a.Inode().String(), Generation: uint64(a.Generation()), Degraded: a.Degraded(),
		Stored: uint64(a.Stored()), Links: a.Nlink(), Target: jsonname.Name(a.Target()), Clean: a.Clean(), Evicted: a.Evicted(),
		Inline: uint64(a.Inline()),
	}
	mode := fs.FileMode(a.Mode() & 0o777)
	e.Type = typeNames[a.Type()]
	if a.IsRegular() {
		if e.Level = a.Level().String(); a.IsLost() {
			e.Level = "lost"
		}
	}
	e.Mode = modeString(mode | typeModes[a.Type()])
	return e
}

// typeModes are the types of files, other than regular, as bits of Go's mode.
var typeModes = map[client.FileType]fs.FileMode{
	client.TypeDirectory: fs.ModeDir, client.TypeSymlink: fs.ModeSymlink, client.TypeFifo: fs.ModeNamedPipe, client.TypeSocket: fs.ModeSocket,
	client.TypeCharDevice: fs.ModeDevice | fs.ModeCharDevice, client.TypeBlockDevice: fs.ModeDevice,
}

func describeLocal(p string, i fs.FileInfo) entry {
	e := entry{Path: jsonname.Name(p), Type: "file", Size: uint64(i.Size()), Mode: modeString(i.Mode()), Modified: i.ModTime()}
	for typ, mode := range typeModes {
		if i.Mode().Type() == mode {
			e.Type = typeNames[typ]
		}
	}
	if i.Mode()&fs.ModeSymlink != 0 {
		target, _ := os.Readlink(p) // empty where it cannot be read
		e.Target = jsonname.Name(target)
	}
	return e
}

// modeString writes a mode as ls does, where Go writes it in another way.
func modeString(m fs.FileMode) string {
	letters := map[fs.FileMode]string{
		fs.ModeSymlink: "l", fs.ModeSocket: "s", fs.ModeDevice | fs.ModeCharDevice: "c", fs.ModeDevice: "b",
	}
	if l := letters[m.Type()]; l != "" {
		return l + m.Perm().String()[1:]
	}
	return m.String()
}
