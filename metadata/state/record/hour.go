package record

import "fmt"

// HourName returns the hour of a wall clock time in nanoseconds, such as "2026-11-29T14", in UTC. It
// is arithmetic of the Gregorian calendar: the state must not depend on a library's time zones.
func HourName(nanos int64) string {
	const hour, hours = 3_600_000_000_000, 24
	h := floor(nanos, hour)
	days := floor(h, hours)
	year, month, day := civil(days)
	return fmt.Sprintf("%04d-%02d-%02dT%02d", year, month, day, h-days*hours)
}

// civil returns the date that lies days after 1970-01-01. It counts years from March, so that a leap
// day is the last day of a year, and in eras of 400 years, which all have as many days.
func civil(days int64) (year, month, day int64) {
	const era, sinceMarch0 = 146_097, 719_468
	days += sinceMarch0
	e := floor(days, era)
	d := days - e*era
	y := (d - d/1460 + d/36_524 - d/146_096) / 365
	d -= 365*y + y/4 - y/100
	m := (5*d + 2) / 153
	day = d - (153*m+2)/5 + 1
	month = m + 3
	year = e*400 + y
	if month > 12 {
		month, year = month-12, year+1
	}
	return year, month, day
}

func floor(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
