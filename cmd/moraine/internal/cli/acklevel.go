package cli

import "github.com/morainefs/moraine"

// AckLevel reads the value of an --ack flag: the level that a writer waits for.
func AckLevel(text string) (moraine.Level, error) {
	level, err := moraine.ParseLevel(text)
	if err != nil || (level != moraine.NVMe && level != moraine.Memory) {
		return 0, UsageError("--ack %q: write nvme or memory", text)
	}
	return level, nil
}

// MountAckLevel is AckLevel for a mount, which can also answer at level local.
func MountAckLevel(text string) (moraine.Level, error) {
	level, err := moraine.ParseLevel(text)
	if err != nil || level > moraine.NVMe {
		return 0, UsageError("--ack %q: write nvme, memory or local", text)
	}
	return level, nil
}
