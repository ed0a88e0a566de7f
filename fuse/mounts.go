package fuse

import (
	"bufio"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/morainefs/moraine"
)

// Mounted is a mount of this kind on this machine.
type Mounted struct {
	// Dir is the directory that it is on, and Source what was mounted there.
	Dir, Source string
	// User mounted it.
	User int

	device string // its number, as MAJOR:MINOR
}

// MountOf returns the mount that an absolute path is, or lies in. It makes no call to the mount, so
// it does not wait for one that hangs.
func MountOf(path string) (Mounted, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return Mounted{}, err
	}
	defer f.Close()
	var found Mounted
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		m, ok := parseMount(lines.Text())
		// A later mount on the same directory hides an earlier one.
		if ok && len(m.Dir) >= len(found.Dir) && (path == m.Dir || strings.HasPrefix(path, strings.TrimSuffix(m.Dir, "/")+"/")) {
			found = m
		}
	}
	if err := lines.Err(); err != nil {
		return Mounted{}, err
	}
	if found.Dir == "" {
		return Mounted{}, &moraine.Error{Ref: path, Kind: moraine.NotFound, Err: errors.New("no mount of moraine is there; /proc/mounts lists all")}
	}
	return found, nil
}

// parseMount reads a line of /proc/self/mountinfo; ok is false for other kinds of file systems.
func parseMount(line string) (m Mounted, ok bool) {
	// 36 35 98:0 / /mnt rw,noatime - fuse.moraine source rw,user_id=1000,...
	place, kind, ok := strings.Cut(line, " - fuse."+fsType+" ")
	fields, details := strings.Fields(place), strings.Fields(kind)
	if !ok || len(fields) < 5 || len(details) < 2 {
		return Mounted{}, false
	}
	_, user, _ := strings.Cut(","+details[1], ",user_id=")
	user, _, _ = strings.Cut(user, ",")
	m = Mounted{Dir: unescapeMount(fields[4]), Source: unescapeMount(details[0]), device: fields[2]}
	m.User, _ = strconv.Atoi(user)
	return m, true
}
