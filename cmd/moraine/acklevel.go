package main

import "github.com/morainefs/moraine"

// ackLevel reads the value of an --ack flag: the level that a writer waits for.
func ackLevel(text string) (moraine.Level, error) {
	level, err := moraine.ParseLevel(text)
	if err != nil || (level != moraine.NVMe && level != moraine.Memory) {
		return 0, usageError("--ack %q: write nvme or memory", text)
	}
	return level, nil
}
