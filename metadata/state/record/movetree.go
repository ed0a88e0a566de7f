package record

import "github.com/morainefs/moraine"

func DecodeTreeDir(b []byte) (string, error) {
	d := Dec{B: b}
	d.Version(JobVersion)
	name := d.string()
	return name, d.End("directory of a tree")
}

// Failed keeps the first reason for which not everything was done.
func (j *Job) Failed(why string) {
	if j.Err == "" {
		j.Err = Clip(why, moraine.MaxNameLen)
	}
}
