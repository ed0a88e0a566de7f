package bench

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// holdings is what processes have: bytes of memory of their own and of shared memory, and open
// descriptors.
type holdings struct {
	private, shared, descriptors float64
}

func (h *holdings) add(o holdings) {
	h.private, h.shared, h.descriptors = h.private+o.private, h.shared+o.shared, h.descriptors+o.descriptors
}

// holdingsOf reads what a process has; nothing if it has ended.
func holdingsOf(pid int) (h holdings) {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	h.descriptors = float64(len(entries))
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return h
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, value, _ := strings.Cut(sc.Text(), ":")
		var kb float64
		if _, err := fmt.Sscan(value, &kb); err != nil {
			continue // not a number
		}
		switch name {
		case "RssAnon", "RssFile":
			h.private += kb * 1024
		case "RssShmem":
			h.shared += kb * 1024
		}
	}
	return h
}
