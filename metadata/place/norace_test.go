//go:build !race

package place_test

const simulatedHosts = 3000
