"""Texts that ship with ltr, for the proof of a ranker whose data is not here. They are written to
show faults: capitals, digits, accents, spaces, brackets, long and short ones.
"""

QUERIES = (
    "What causes iron deficiency Anemia in Adults?",
    "how tall is Mount Everest",
    "Who wrote The Brothers Karamazov",
    "best way to store fresh basil",
    "Python: read a CSV file line by line",
    "symptoms of vitamin B12 deficiency",
    "When was the Treaty of Westphalia signed?",
    "difference between TCP and UDP",
    "Is São Paulo larger than Rio de Janeiro?",
    "how do Vaccines work",
    "average rainfall in the Atacama Desert (mm per year)",
    "What does HTTP status 418 mean",
    "repair a bicycle tyre without a patch kit",
    "speed of light in water",
    "Which planets have rings?",
    "tax deadline for self-employed people",
)

DOCUMENTS = (
    "Iron deficiency is the most common cause of anemia. Blood loss, a poor diet and celiac disease "
    "are frequent reasons in adults.",
    "Mount Everest rises 8,849 m above sea level, according to the survey that China and Nepal "
    "published in 2020.",
    "Fyodor Dostoevsky finished The Brothers Karamazov in 1880, a few months before he died.",
    "Put the stems of basil into a glass of water and leave it on the kitchen counter, NOT in the "
    "fridge: cold air turns the leaves black.",
    "import csv\nwith open('data.csv', newline='') as file:\n    for row in csv.reader(file):\n"
    "        print(row)",
    "Too little vitamin B12 shows as tiredness, numb fingers and a sore tongue. A blood test finds "
    "it.",
    "The Peace of Westphalia is two treaties, signed in October 1648 in Osnabrück and Münster. They "
    "ended the Thirty Years' War.",
    "TCP keeps a connection and repeats lost packets; UDP sends datagrams and forgets them.",
    "São Paulo has some 11.5 million inhabitants, Rio de Janeiro 6.2 million.",
    "A vaccine shows the immune system a harmless part of a germ. B cells then make antibodies, and "
    "some of them remember it for years.",
    "Parts of the Atacama get less than 1 mm of rain a year. Fog from the Pacific is the only water "
    "there.",
    "418 I'm a teapot: the server refuses to brew coffee because it is, permanently, a teapot.",
    "Stuff the tyre with grass or leaves as tightly as you can, and ride home slowly.",
    "Light travels at about 225,000 km/s in water, three quarters of its speed in a vacuum.",
    "Saturn's rings are the brightest. Jupiter, Uranus and Neptune have rings, too.",
    "The self-employed file by 31 January. Late returns cost £100 at once.",
    "yes",
    "Cats sleep 12 to 16 hours a day.",
    "A  text   with\tspaces and [brackets], {braces} and <angles>; e.g. [MASK] or </s>.",
    "Öl, ÄRGER, naïve, Ελλάδα, Москва, 東京: words of other alphabets.",
)
